//! Profiles: what is read back, what is refused, and how it is said.

use super::*;
use proptest::prelude::*;

fn profile() -> Profile {
    let rate = |which: Coefficient, value, basis| Rate {
        name: which.name().to_owned(),
        value,
        basis,
        deviation_ppm: 12_000,
    };
    Profile {
        schema: SCHEMA.to_owned(),
        plimsoll: "0.1.0".to_owned(),
        holds_for: HoldsFor {
            engine: EngineWord::Vllm,
            release: "0.19.0".to_owned(),
            device: "NVIDIA GeForce RTX 4090".to_owned(),
            model: "meta-llama/Llama-3.1-8B".to_owned(),
            layers: 32,
            weights_bytes: 16_060_522_496,
            ranks: 1,
            data_parallel: 1,
            dtype: "bf16".to_owned(),
            kv_cache_dtype: "auto".to_owned(),
        },
        time: vec![
            rate(Coefficient::Step, 1_200_000, Basis::Fitted),
            rate(Coefficient::Matmul, 610_000, Basis::Assumed),
        ],
        memory: vec![Remainder {
            name: RemainderName::GraphMemory,
            measured_bytes: 1 << 29,
            predicted_bytes: 1 << 28,
            place: "server.log:12".to_owned(),
        }],
        sources: vec![Source {
            file: "requests.jsonl".to_owned(),
            sha256: "00".repeat(32),
            kind: SourceKind::Requests,
            measured: 300,
            fitted: 100,
        }],
        residual: vec![Residual {
            part: Part::HeldOut,
            metric: Metric::Ttft,
            count: 200,
            mean_error_ppm: -11_000,
            typical_error_ppm: 20_000,
            worst_error_ppm: 300_000,
        }],
    }
}

#[test]
fn a_profile_reads_back() {
    let text = profile().to_text().unwrap();
    assert_eq!(Profile::parse("p.yaml", &text).unwrap(), profile());
    let json = serde_json::to_string_pretty(&profile()).unwrap();
    assert_eq!(Profile::parse("p.json", &json).unwrap(), profile());
    insta::assert_snapshot!(text);
}

proptest! {
    #[test]
    fn any_value_within_bounds_reads_back(
        picks in prop::collection::vec(any::<u64>(), Coefficient::ALL.len()),
        deviation in any::<u64>(),
        error in any::<i64>(),
        name in "\\PC{0,30}",
    ) {
        let mut profile = profile();
        profile.time = Coefficient::ALL.into_iter().zip(&picks).map(|(which, pick)| {
            let bounds = which.bounds();
            Rate {
                name: which.name().to_owned(),
                value: bounds.least + pick % (bounds.most - bounds.least + 1),
                basis: if pick % 2 == 0 { Basis::Fitted } else { Basis::Assumed },
                deviation_ppm: deviation,
            }
        }).collect();
        profile.residual[0].mean_error_ppm = error;
        profile.holds_for.model = name;
        let text = profile.to_text().unwrap();
        prop_assert_eq!(Profile::parse("p.yaml", &text).unwrap(), profile);
    }

    #[test]
    fn hostile_text_is_an_error_and_no_panic(text in "\\PC{0,200}", cut in 0..900_usize) {
        let _ = Profile::parse("p.yaml", &text);
        let whole = profile().to_text().unwrap();
        let end = whole.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(whole.len());
        let _ = Profile::parse("p.yaml", &format!("{}{text}", &whole[..end]));
    }
}

/// What a wrong text gives.
fn error(from: &str, to: &str) -> String {
    let text = profile().to_text().unwrap();
    assert!(text.contains(from), "{from}");
    Profile::parse("p.yaml", &text.replacen(from, to, 1)).unwrap_err().render()
}

#[test]
fn mistakes_are_named_with_their_place() {
    let errors = [
        error("schema: plimsoll.profile/1", "schema: plimsoll.profile/9"),
        error("value: 1200000", "value: 0"),
        error("value: 1200000", "value: fast"),
        error("name: matmul_ppm", "name: matmull"),
        error("name: matmul_ppm", "name: step_ns"),
        error("holds_for:", "held_for:"),
        error("release: 0.19.0", "releas: 0.19.0"),
        Profile::parse("p.yaml", "").unwrap_err().render(),
        Profile::parse("p.yaml", "- 1").unwrap_err().render(),
    ];
    insta::assert_snapshot!(errors.join("----\n"));
}
