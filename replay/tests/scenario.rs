//! Scenario files: what is read, what is refused and how, overrides, schema, docs.

use plimsoll_replay::scenario::Scenario;

#[test]
fn every_mistake_of_a_file_is_shown_at_once() {
    let problems =
        Scenario::parse("broken.yaml", include_str!("data/broken.yaml"), &[]).unwrap_err();
    insta::assert_snapshot!(problems.render());
}

#[test]
fn whole() {
    let s = Scenario::parse("kimi.yaml", include_str!("data/kimi.yaml"), &[]);
    println!("{:#?}", s);
    println!("{}", plimsoll_replay::scenario::schema::markdown_table());
    s.unwrap();
}
