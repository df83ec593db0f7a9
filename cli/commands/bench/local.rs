//! The engine of this process under load.

use super::{
    drive::{Heard, Target, Trouble, Voice, What, answer_tokens},
    fold::Fold,
};
use plimsoll_backend_host::model::Sampling;
use plimsoll_core::{
    engine::serving::{Arrival, SamplingChoice},
    sched::{EosRule, Finish, RequestId},
};
use plimsoll_server::engine::{Ended, Engine, Event, Submission, Ticket};
use std::time::Instant;

/// An engine, and how prompts become its tokens.
pub struct Local {
    /// Whom the load goes to.
    pub engine: Engine,
    /// Ids of the model.
    pub fold: Fold,
    /// Whether the model's own end counts.
    pub eos: EosRule,
}

impl Target for Local {
    fn send(&mut self, arrival: &Arrival, voice: &Voice) {
        let request = &arrival.request;
        let submission = Submission {
            sampling: sampling(arrival),
            eos: self.eos,
            priority: request.priority,
            namespace: request.namespace,
            ..Submission::greedy(self.fold.prompt(&request.prompt), answer_tokens(request))
        };
        let ticket = self.engine.submit(submission);
        tokio::spawn(listen(ticket, request.id, voice.clone()));
    }

    fn made(&mut self, request: RequestId, token: u32) {
        self.fold.made(request, token);
    }
}

/// Of the choices that a workload tells apart, one each.
fn sampling(arrival: &Arrival) -> Sampling {
    let demand = arrival.sampling;
    let greedy = Sampling {
        seed: arrival.request.id.0,
        logprobs: demand.output_logprobs.then_some(0),
        ..Sampling::default()
    };
    let drawn = Sampling { temperature: 1.0, ..greedy };
    match demand.choice {
        SamplingChoice::Greedy => greedy,
        SamplingChoice::Temperature => drawn,
        SamplingChoice::TopKTopP => Sampling { top_p: 0.95, ..drawn },
        SamplingChoice::MinP => Sampling { min_p: 0.05, ..drawn },
    }
}

/// Hears a request to its end. When nobody listens any more the ticket goes, and the request with it.
async fn listen(mut ticket: Ticket, request: RequestId, voice: Voice) {
    loop {
        let event = ticket.next().await;
        let at = Instant::now();
        let (what, last) = match event {
            Some(Event::Prompt(_)) => continue,
            Some(Event::Token(piece)) => (What::Token(Some(piece.token)), false),
            Some(Event::Finished(ended)) => (over(&ended), true),
            Some(Event::Refused(refusal)) if refusal.code == "engine_gone" => {
                (What::Lost(refusal.message), true)
            }
            Some(Event::Refused(refusal)) => {
                let (reason, message) = (refusal.code.to_owned(), refusal.message);
                (What::Refused(Trouble { reason, message }), true)
            }
            None => (What::Lost("the engine has ended".to_owned()), true),
        };
        if voice.send(Heard { request, at, what }).is_err() || last {
            return;
        }
    }
}

fn over(ended: &Ended) -> What {
    let tokens = ended.tokens;
    match ended.finish {
        Finish::Stop | Finish::Length => What::Ended {
            outputs: Some(tokens.completion),
            prompt: Some(tokens.prompt),
            cached: Some(tokens.cached),
        },
        Finish::Abort => What::Broken(Trouble {
            reason: "given_up".to_owned(),
            message: format!("given up after {} tokens", tokens.completion),
        }),
    }
}
