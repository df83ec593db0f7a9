//! Logs put together line by line.

use plimsoll_diagnosis::{Asked, Case, emit::Ask};
use plimsoll_ingest::log::{
    Activity, Amount, Event, Frame, Kind, Log, Rank, Server, Sglang, TorchOom, TorchOomForm, Vllm,
};

pub(crate) fn gb(value: f64) -> Amount {
    Amount::gib(value, 2)
}

/// A log under construction.
#[derive(Default)]
pub(crate) struct Made {
    log: Log,
    asked: Asked,
}

impl Made {
    pub(crate) fn of(server: Server, version: &str) -> Self {
        let version = Some((version.into(), 0, 1));
        Self {
            log: Log { server: Some(server), version, lines: 1, ..Log::default() },
            asked: Asked::default(),
        }
    }

    pub(crate) fn device(mut self, name: &str) -> Self {
        self.log.devices.push(name.into());
        self
    }

    pub(crate) fn command(mut self, text: &str) -> Self {
        self.log.command = Some(text.into());
        self
    }

    pub(crate) fn args(mut self, args: &[(&str, &str)]) -> Self {
        self.log.args =
            args.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self
    }

    fn push(mut self, rank: Rank, kind: Kind) -> Self {
        self.log.lines += 1;
        self.log.events.push(Event {
            file: 0,
            line: self.log.lines,
            rank,
            start: 0,
            seconds: None,
            text: "".into(),
            kind,
        });
        self
    }

    pub(crate) fn sglang(self, rank: u32, line: Sglang) -> Self {
        self.push(Rank::tp(rank), Kind::Sglang(line))
    }

    pub(crate) fn vllm(self, line: Vllm) -> Self {
        self.push(Rank::NONE, Kind::Vllm(line))
    }

    pub(crate) fn system(self, line: plimsoll_ingest::log::System) -> Self {
        self.push(Rank::NONE, Kind::System(line))
    }

    pub(crate) fn oom(
        self,
        rank: u32,
        requested: Amount,
        free: Amount,
        capacity: f64,
        function: &str,
    ) -> Self {
        let frame = Frame {
            file: "model_runner.py".into(),
            line: None,
            function: Some(function.into()),
            code: None,
        };
        let oom = TorchOom {
            form: TorchOomForm::Sentences,
            dialect: "CUDA".into(),
            requested: Some(requested),
            device: Some(rank),
            capacity: Some(gb(capacity)),
            free: Some(free),
            this_process: None,
            processes: Vec::new(),
            allocated: None,
            private_pools: None,
            reserved_unallocated: None,
            frames: if function.is_empty() { Vec::new() } else { vec![frame] },
        };
        self.push(Rank::tp(rank), Kind::TorchOom(oom))
    }

    /// The usual lines of a start on one rank.
    pub(crate) fn loads(self, rank: u32, before: f64, after: f64) -> Self {
        let loaded = Sglang::LoadEnd {
            model_class: None,
            form: None,
            avail: Some(gb(after)),
            usage: Some(gb(before - after)),
            draft: Some(false),
        };
        self.sglang(rank, Sglang::LoadBegin { avail: gb(before) }).sglang(rank, loaded)
    }

    pub(crate) fn summary(self, tokens: u64, chunk: i64, context: u64, left: f64) -> Self {
        let line = Sglang::Summary {
            max_total_num_tokens: tokens,
            chunked_prefill_size: Some(chunk),
            max_prefill_tokens: Some(16384),
            max_running_requests: Some(2048),
            context_len: Some(context),
            available_gpu_mem: Some(gb(left)),
        };
        self.sglang(0, line)
    }

    pub(crate) fn prefill(mut self, tokens: f64, requests: f64) -> Self {
        let activity = self.activity();
        let line = 90;
        activity.prefill_tokens.add(tokens, line);
        activity.prefill_requests.add(requests, line);
        self
    }

    pub(crate) fn running(mut self, requests: f64, tokens: f64) -> Self {
        let activity = self.activity();
        activity.running.add(requests, 91);
        activity.held_tokens.add(tokens, 91);
        self
    }

    fn activity(&mut self) -> &mut Activity {
        self.log.activity.entry((0, Rank::tp(0))).or_default()
    }

    pub(crate) fn given(mut self, device: Option<&str>, model: Option<&str>) -> Self {
        self.asked.device = device.map(str::to_owned);
        self.asked.model = model.map(str::to_owned);
        self
    }

    pub(crate) fn case(self) -> Case {
        Case { log: self.log, launch: None, asked: self.asked }
    }
}

pub(crate) fn ask() -> Ask<'static> {
    Ask::default()
}
