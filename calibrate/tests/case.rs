//! A case from a launch command.

use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
use plimsoll_replay::{
    assemble::{ModelAsk, Places, case_launch, find_device, find_model, ranks_of},
    start::{CapacityReading, Case, Facts},
};

pub(crate) fn case(device: &str, release: &str, command: &str) -> Case {
    let ctx = Context { version: Some(release.parse().unwrap()), read_file: None, env: &[] };
    let mut launch = parse_command(LaunchInput::Text(command), &ctx).unwrap();
    let device = find_device(device, &mut launch).unwrap();
    let ask = ModelAsk::of_launch(&launch.engine);
    let model = find_model(&ask, &launch.engine, &Places::default()).unwrap();
    Case {
        launch: case_launch(&launch.engine),
        model,
        device,
        capacity: CapacityReading::Catalog,
        ranks: ranks_of(&launch.engine),
        facts: Facts::default(),
        tenants: Vec::new(),
    }
}
