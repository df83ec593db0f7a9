//! The engines' refusals in one form: a stable code, the numbers, the ways out.

use super::startup::{Refused, Remedy};
use crate::policy::{
    sglang::{
        capacity::CapacityError,
        refusal::{Direction, Refusal},
        version::Version,
    },
    vllm::{self, rules::Rules},
};

const fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Raise => "raise",
        Direction::Lower => "lower",
        Direction::Set => "set",
        Direction::Remove => "remove",
    }
}

pub(super) fn sglang(refusal: &Refusal, version: Version) -> Refused {
    let remedies = refusal.remedies().into_iter().map(|r| Remedy {
        flag: r.flag.to_owned(),
        direction: direction(r.direction),
        value: r.value,
        effect: r.effect.to_owned(),
    });
    Refused {
        code: refusal.code(),
        message: refusal.to_string(),
        engine_message: refusal.engine_message(version),
        remedies: remedies.collect(),
    }
}

pub(super) fn capacity(error: &CapacityError) -> Refused {
    let remedy = Remedy {
        flag: "nvidia-smi".to_owned(),
        direction: "set",
        value: None,
        effect: "make it print the total of every card, or take a release that falls back"
            .to_owned(),
    };
    Refused {
        code: "capacity_unreadable",
        message: error.to_string(),
        engine_message: None,
        remedies: vec![remedy],
    }
}

pub(super) fn vllm(refusal: &vllm::refusal::Refusal, rules: &Rules) -> Refused {
    use vllm::refusal::Direction as D;
    let remedies = refusal.advice().into_iter().map(|advice| Remedy {
        flag: advice.what.to_owned(),
        direction: match advice.direction {
            D::Raise => "raise",
            D::Lower => "lower",
            D::Act => "act",
        },
        value: refusal.advised_value(advice.what),
        effect: advice.why,
    });
    Refused {
        code: refusal.code(),
        message: refusal.to_string(),
        engine_message: refusal.engine_text(rules),
        remedies: remedies.collect(),
    }
}
