//! The whole plan of a launch command.

use crate::{assert_in_order, in_time, text};
use plimsoll_catalog::models;
use plimsoll_ingest::launch::{self, Context, LaunchInput};
use plimsoll_replay::{
    assemble::{ModelAsk, Places, case_launch, find_device, find_model, ranks_of},
    plan::{Plan, plan as plan_case},
    start::{CapacityReading, Case, Facts},
};

/// A device on the first line, a command below it. The account closes, ranges are in order, the value
/// that is advised can be passed.
pub fn plan(data: &[u8]) {
    let Some((device, command)) = text(data).and_then(|text| text.split_once('\n')) else { return };
    let Some(case) = in_time(|| case(device, command)) else { return };
    match in_time(|| plan_case(&case)) {
        Ok(plan) => assert_plan(&plan),
        Err(error) => assert!(!error.to_string().is_empty(), "an error without words"),
    }
}

fn case(device: &str, command: &str) -> Option<Case> {
    let mut launch = launch::parse_command(LaunchInput::Text(command), &Context::default()).ok()?;
    let device = find_device(device, &mut launch).ok()?;
    let ask = ModelAsk::of_launch(&launch.engine);
    // Models of the catalog only: a name may be a path on this machine.
    for name in ask.name.iter().chain(&ask.draft) {
        models::find(name).ok()?;
    }
    let model = find_model(&ask, &launch.engine, &Places::default()).ok()?;
    Some(Case {
        launch: case_launch(&launch.engine),
        model,
        device,
        capacity: CapacityReading::Catalog,
        ranks: ranks_of(&launch.engine),
        facts: Facts::default(),
        tenants: Vec::new(),
    })
}

fn assert_plan(plan: &Plan) {
    assert!(!plan.headline.is_empty(), "a plan without a verdict");
    let ledger = &plan.ran.ledger;
    assert_eq!(ledger.rest().map(|rest| rest + ledger.held()), Ok(ledger.capacity));
    for row in ledger.rows() {
        assert_in_order(row.account.name(), row.bytes);
    }
    if let Some(left) = plan.left {
        assert_in_order("left after graphs", left);
    }
    if let Some(pool) = plan.pool {
        assert!(pool.low <= pool.mid && pool.mid <= pool.high, "{pool:?} is out of order");
    }
    for at in plan.advised.iter().chain(&plan.automatic) {
        assert!(at.fraction > 0.0 && at.fraction < 1.0, "{} cannot be passed", at.fraction);
    }
}
