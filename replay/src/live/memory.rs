//! The plan's memory on the simulator: as large as the plan, each account in its place, the pool in pages.

use super::{PlannedRow, account};
use plimsoll_backend_sim::{DeviceSpec, HostSpec, MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend, BackendError, Place, RangeId, Rank},
    engine::live::{BodyError, Pages},
    kv::Runs,
    memory::ledger::Account,
    units::Bytes,
};

/// Pages of a pool that hold nothing.
pub(super) struct SimulatedPool {
    machine: SimBackend,
    range: RangeId,
    page: Bytes,
}

impl SimulatedPool {
    /// All of the plan is taken; a row of no bytes is nothing.
    ///
    /// # Errors
    ///
    /// [`BackendError`] where it does not fit itself.
    pub(super) fn new(plan: &[PlannedRow], pages: u64) -> Result<Self, BackendError> {
        let all = plan.iter().fold(0_u64, |sum, row| sum.saturating_add(row.bytes.0));
        let pool = plan.iter().filter(|row| account(&row.account) == Account::KvPool);
        let pool: u64 = pool.map(|row| row.bytes.0).sum();
        // A plan without a pool row still has pages to lend.
        let page = Bytes((pool / pages.max(1)).max(1));
        let whole = Bytes(page.0.saturating_mul(pages.max(1)));
        let capacity = Bytes(all.max(whole.0));
        let spec = MachineSpec::new(
            vec![DeviceSpec::of_capacity(capacity)],
            HostSpec::of_available(Bytes::ZERO),
        );
        let mut machine = SimBackend::new(spec)?;
        for row in plan {
            let account = account(&row.account);
            if account != Account::KvPool && account != Account::Free && row.bytes > Bytes::ZERO {
                machine.allocate(Rank(0), account, Place::Device, row.bytes)?;
            }
        }
        let range = machine.reserve(Rank(0), Account::KvPool, whole)?;
        machine.map(range, Bytes::ZERO, whole)?;
        Ok(Self { machine, range, page })
    }

    fn offset(&self, page: u64) -> Bytes {
        // The scheduler's page 0 is a dummy.
        Bytes(page.saturating_sub(1).saturating_mul(self.page.0))
    }
}

impl Pages for SimulatedPool {
    fn lend(&mut self, pages: &Runs) -> Result<(), BodyError> {
        for page in pages.values() {
            let (at, size) = (self.offset(page), self.page);
            let unmapped = self.machine.unmap(self.range, at, size);
            unmapped.map_err(|error| BodyError::Failed(error.to_string()))?;
        }
        Ok(())
    }

    fn take_back(&mut self, pages: &Runs) -> Result<(), BodyError> {
        for page in pages.values() {
            let (at, size) = (self.offset(page), self.page);
            let mapped = self.machine.map(self.range, at, size);
            mapped.map_err(|error| BodyError::Failed(error.to_string()))?;
        }
        Ok(())
    }
}
