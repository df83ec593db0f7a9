//! What a server will hold, whatever it computes on.

use plimsoll_core::{
    figure::Why,
    memory::ledger::Account,
    policy::plimsoll::{
        Part, Plan, Settings,
        device::{DevicePart, DevicePlan},
    },
    units::Bytes,
};

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedRow {
    /// Name in records and in JSON.
    pub name: &'static str,
    /// Name for people.
    pub label: &'static str,
    /// The account of a ledger that it belongs to.
    pub account: Account,
    /// As planned.
    pub planned: Bytes,
    /// What taking it has cost, where that was measured before the weights were read.
    pub measured: Option<Bytes>,
    /// From what.
    pub why: Why,
}

impl PlannedRow {
    /// What counts: the measurement, where there is one.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.measured.unwrap_or(self.planned)
    }
}

/// The rows of one memory. Their bytes add up to `limit`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOf {
    /// The device: `cuda:0`; `None` for the host.
    pub device: Option<String>,
    /// How much there is.
    pub limit: Bytes,
    /// What set that.
    pub from: String,
    /// In the order of printing.
    pub rows: Vec<PlannedRow>,
}

/// The plan of all memories that a server uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    /// The host's, or one of each rank's device.
    pub memories: Vec<MemoryOf>,
    /// Pages of the pool, on every rank the same.
    pub pages: u64,
    /// One page of a rank.
    pub page: Bytes,
    /// What should stay free.
    pub margin: Bytes,
    /// What the scheduler may form.
    pub settings: Settings,
    /// How weights, keys and values are kept, and in what is computed.
    pub precision: String,
}

impl MemoryPlan {
    /// Where it computes: `host`, `cuda:0`, `cuda:0,1`.
    #[must_use]
    pub fn device(&self) -> String {
        let names = self.memories.iter().filter_map(|memory| memory.device.as_deref());
        let joined = names.fold(String::new(), |all, name| match name.strip_prefix("cuda:") {
            Some(number) if !all.is_empty() => all + "," + number,
            _ => all + name,
        });
        if joined.is_empty() { "host".to_owned() } else { joined }
    }

    /// On the host.
    #[must_use]
    pub fn of_host(plan: &Plan, precision: String) -> Self {
        let rows = plan.rows.iter().map(|row| PlannedRow {
            name: row.part.name(),
            label: row.part.label(),
            account: row.part.account(),
            planned: row.bytes,
            measured: None,
            why: row.why.clone(),
        });
        let memory = MemoryOf {
            device: None,
            limit: plan.limit.bytes,
            from: plan.limit.from.to_string(),
            rows: rows.collect(),
        };
        Self {
            memories: vec![memory],
            pages: plan.pages,
            page: plan.page,
            margin: plan.of(Part::Margin),
            settings: plan.settings,
            precision,
        }
    }

    /// On devices, a rank each: their plans and ordinals. `None` without any.
    #[must_use]
    pub fn of_devices(plans: &[DevicePlan], devices: &[u32], precision: String) -> Option<Self> {
        let first = plans.first()?;
        let memory = |(plan, device): (&DevicePlan, &u32)| MemoryOf {
            device: Some(format!("cuda:{device}")),
            limit: plan.total,
            from: "all of the device".to_owned(),
            rows: plan.rows.iter().map(device_row).collect(),
        };
        // What was measured of a margin is what it could have.
        let margin = |plan: &DevicePlan| plan.row(DevicePart::Margin).map(|row| row.planned);
        Some(Self {
            memories: plans.iter().zip(devices).map(memory).collect(),
            pages: first.pages,
            page: first.page,
            margin: plans.iter().filter_map(margin).max().unwrap_or_default(),
            settings: first.settings,
            precision,
        })
    }
}

fn device_row(row: &plimsoll_core::policy::plimsoll::device::DeviceRow) -> PlannedRow {
    PlannedRow {
        name: row.part.name(),
        label: row.part.label(),
        account: row.part.account(),
        planned: row.planned,
        measured: row.measured,
        why: row.why.clone(),
    }
}
