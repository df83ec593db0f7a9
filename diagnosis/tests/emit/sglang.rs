//! Logs of SGLang.

use crate::Given;

#[test]
fn a_thin_margin_dies_in_the_prefill_of_the_log() {
    let (crash, fixed) = Given::log(include_str!("logs/kimi-0.93.log")).both();
    insta::assert_snapshot!("kimi_crash", crash);
    insta::assert_snapshot!("kimi_fixed", fixed);
}

#[test]
fn a_healthy_start_is_written_and_has_no_fix() {
    let emitted = Given::log(include_str!("logs/kimi-0.93.start.log")).crash();
    assert!(emitted.crash.text.contains("outcome: started"));
    assert_eq!(emitted.fixed, Err("nothing failed in this log".to_owned()));
}

#[test]
fn a_start_that_is_refused_for_its_weights() {
    let (crash, fixed) = Given::log(include_str!("logs/weights-above-fraction.log")).both();
    insta::assert_snapshot!("refused_crash", crash);
    insta::assert_snapshot!("refused_fixed", fixed);
}

#[test]
fn one_line_with_a_floor_is_enough() {
    let log = Given::log(include_str!("logs/floor-alone.log"));
    let (crash, _) = Given { device: Some("H100 80GB"), ..log }.both();
    insta::assert_snapshot!("refused_one_line", crash);
}

#[test]
fn one_line_without_a_number_is_enough() {
    let log = Given::log(include_str!("logs/no-number.log"));
    // The weights are more than 0.75 of the first card, and less than that of the second.
    let (crash, _) = Given { device: Some("A100-SXM4-80GB"), ..log }.both();
    assert!(!crash.contains("readings"), "{crash}");
    let (crash, _) =
        Given { device: Some("H200"), ..Given::log(include_str!("logs/no-number.log")) }.both();
    assert!(crash.contains("the least that is refused at 0.75"), "{crash}");
}

#[test]
fn an_unknown_model_does_not_matter_where_nothing_is_left() {
    let emitted = Given::log(include_str!("logs/unknown-model.log")).crash();
    insta::assert_snapshot!("unknown_model", emitted.crash.text);
    assert!(emitted.fixed.unwrap_err().contains("--model"));
}

#[test]
fn a_capture_that_finds_no_room_for_a_workspace() {
    let (crash, fixed) = Given::log(include_str!("logs/capture-workspace.log")).both();
    insta::assert_snapshot!("capture_crash", crash);
    insta::assert_snapshot!("capture_fixed", fixed);
}

#[test]
fn a_prefill_of_which_only_the_last_line_is_there() {
    let (crash, fixed) = Given::log(include_str!("logs/prefill-one-line.log")).both();
    insta::assert_snapshot!("prefill_one_line", crash);
    insta::assert_snapshot!("prefill_one_line_fixed", fixed);
}

#[test]
fn loading_that_needs_more_than_the_loaded_weights() {
    let emitted = Given::log(include_str!("logs/load-peak.log")).crash();
    insta::assert_snapshot!("load_peak", emitted.crash.text);
}

#[test]
fn ranks_with_readings_of_their_own_keep_them() {
    let emitted = Given::log(include_str!("logs/two-cards.log")).crash();
    insta::assert_snapshot!("two_cards", emitted.crash.text);
}

#[test]
fn a_laptop_whose_pool_is_nearly_empty() {
    let log = Given::log(include_str!("logs/laptop.log"));
    let (crash, fixed) = Given { device: Some("Apple 64 GB"), ..log }.both();
    insta::assert_snapshot!("laptop_crash", crash);
    insta::assert_snapshot!("laptop_fixed", fixed);
}

#[test]
fn a_host_pool_that_does_not_fit() {
    let log = Given::log(include_str!("logs/host-pool.log"));
    let (crash, fixed) = Given { device: Some("H100 80GB"), ..log }.both();
    insta::assert_snapshot!("host_crash", crash);
    insta::assert_snapshot!("host_fixed", fixed);
}

#[test]
fn arguments_that_the_server_prints_stand_for_a_command() {
    let (crash, _) = Given::log(include_str!("logs/server-args.log")).both();
    assert!(!crash.contains("not-for-others"));
    insta::assert_snapshot!("from_arguments", crash);
}
