//! Memory that a start takes and gives back, account by account.

use super::{Capture, RankLoad, StartPolicy, Starter, Stop, Taking, figures_record};
use crate::{
    backend::{Backend, Place, Rank, SegmentId},
    decision::{DecisionSink, Record},
    memory::ledger::Account,
    units::Bytes,
};

impl<B: Backend + ?Sized, S: DecisionSink> Starter<'_, B, S> {
    /// Weights with the copies that their loading makes, then a draft that is there from the start.
    pub(super) fn load(&mut self) -> Result<(), Stop> {
        self.doing = Taking::Load;
        self.take_each(Account::Weights, |load| load.weights)?;
        self.take_for_a_while(Account::LoadScratch, |load| load.load_scratch)?;
        self.doing = Taking::DraftLoad;
        self.take_each(Account::DraftWeights, |load| load.draft_weights)
    }

    /// All that follows the pools, in the engines' order: workspaces, kernels under tuning, graphs,
    /// and a draft that loads once the target is complete.
    ///
    /// Source: SGLang `ModelRunner.initialize` (attention backend, kernel warm-up, graphs) and the
    /// draft worker, built after it up to 0.5.13.
    pub(super) fn take_outside_the_pool(&mut self) -> Result<(), Stop> {
        self.doing = Taking::Workspaces;
        self.take_each(Account::Workspaces, |load| load.workspaces)?;
        self.doing = Taking::Autotune;
        self.take_for_a_while(Account::AutotuneScratch, |load| load.autotune_scratch)?;
        self.doing = Taking::Graphs;
        self.take_graphs()?;
        self.doing = Taking::DraftLoad;
        self.take_each(Account::DraftWeights, |load| load.late_draft_weights)?;
        self.doing = Taking::DraftPool;
        self.take_segments(self.start.pool.late_segments.clone())?;
        self.doing = Taking::DraftGraphs;
        self.take_each(Account::DraftGraphs, |load| load.draft_graphs)?;
        self.doing = Taking::Unaccounted;
        self.take_each(Account::Unaccounted, |load| load.unaccounted)
    }

    /// The private pool's segments, then what the driver takes for each graph. The sum is the load's,
    /// whatever the parts would like to be.
    fn take_graphs(&mut self) -> Result<(), Stop> {
        let Capture { batches, .. } = self.capture;
        if batches.is_empty() {
            return self.take_each(Account::Graphs, |load| load.graphs);
        }
        let (capture, loads) = (self.capture, self.loads);
        for (rank, load) in self.ranks().zip(loads) {
            let shares = capture.divide(load.graphs);
            for segment in &shares.pool {
                self.take(rank, Account::Graphs, Place::Device, *segment)?;
            }
            let (mut graphs, mut held, mut failed) = (0_u64, Bytes::ZERO, None);
            for (batch, size) in shares.by_graph(batches) {
                match self.backend.capture(rank, batch, size) {
                    Ok(_) => (graphs, held) = (graphs + 1, held + size),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            // One record for all graphs of a rank; when one fails, for those before it.
            if held > Bytes::ZERO {
                let record = Record::of("segment_allocated", rank);
                let record = record.with("account", Account::Graphs.name());
                let record = record.with("place", "device").with("size_bytes", held.0);
                self.sink.record(record.with("graphs", graphs));
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Takes on every rank, then gives all of it back: ranks work in lockstep, so a neighbour on the
    /// same card sees it too.
    fn take_for_a_while(
        &mut self,
        account: Account,
        size: impl Fn(&RankLoad) -> Bytes,
    ) -> Result<(), Stop> {
        let mut held = Vec::new();
        for (rank, load) in self.ranks().zip(self.loads) {
            let size = size(load);
            held.extend(self.take(rank, account, Place::Device, size)?.map(|id| (rank, id, size)));
        }
        for (rank, segment, size) in held {
            self.backend.free(segment)?;
            let record = Record::of("segment_freed", rank).with("account", account.name());
            self.sink.record(record.with("place", "device").with("size_bytes", size.0));
        }
        Ok(())
    }

    pub(super) fn take_each(
        &mut self,
        account: Account,
        size: impl Fn(&RankLoad) -> Bytes,
    ) -> Result<(), Stop> {
        for (rank, load) in self.ranks().zip(self.loads) {
            self.take(rank, account, Place::Device, size(load))?;
        }
        Ok(())
    }

    pub(super) fn take_pools(&mut self) -> Result<(), Stop> {
        self.doing = Taking::Pool;
        self.take_segments(self.start.pool.segments.clone())
    }

    fn take_segments(&mut self, segments: Vec<Vec<(Account, Bytes)>>) -> Result<(), Stop> {
        for (rank, segments) in self.ranks().zip(segments) {
            for (account, size) in segments {
                self.take(rank, account, Place::Device, size)?;
            }
        }
        Ok(())
    }

    pub(super) fn take_host_pool<P: StartPolicy>(&mut self, policy: &mut P) -> Result<(), Stop> {
        self.doing = Taking::HostPool;
        let available = self.backend.host_available()?;
        let host = policy.host_pool(available)?;
        if host.per_rank.is_empty() {
            return Ok(());
        }
        self.sink.record(Record::new("host_read").with("available_bytes", available.0));
        self.sink.record(figures_record("host_pool_sized", &host.figures));
        self.start.host = host;
        let sizes = self.start.host.per_rank.clone();
        for (rank, size) in self.ranks().zip(sizes) {
            self.take(rank, Account::KvPool, Place::Host, size)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<Option<SegmentId>, Stop> {
        if size == Bytes::ZERO {
            return Ok(None);
        }
        let place_name = match place {
            Place::Device => "device",
            Place::Host => "host",
        };
        let segment = self.backend.allocate(rank, account, place, size)?;
        let record = Record::of("segment_allocated", rank).with("account", account.name());
        self.sink.record(record.with("place", place_name).with("size_bytes", size.0));
        Ok(Some(segment))
    }
}
