//! Requests as the engine's thread knows them: who hears of them, how their tokens are chosen, and how tokens
//! become text.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use plimsoll_backend_host::model::{Sampled, Sampler, SamplingError};
use plimsoll_checkpoint::{StopStrings, TextStream, Tokenizer};
use plimsoll_core::{
    sched::{EosRule, Finish, Made, RequestId},
    tape::own::Draw,
};

use super::handle::{Ended, Event, Events, Matched, Piece, Refusal, Submission, TokenUse};

/// Most events that a client may leave unread: far more than lie between a socket and a reader that reads.
const MOST_UNREAD: u64 = 1024;

/// A request under way.
#[derive(Debug)]
struct Asked {
    events: Events,
    sampler: Sampler,
    text: TextStream,
    stops: StopStrings,
    /// As they were asked for: the index of a match is one of these.
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    eos: EosRule,
    tokens: TokenUse,
    admitted: bool,
    matched: Option<Matched>,
}

/// All requests under way. The model's side and the log's side of a turn both look in here.
#[derive(Debug)]
pub(super) struct Desk {
    tokenizer: Arc<Tokenizer>,
    /// Ids that end a text.
    eos: Vec<u32>,
    asked: RefCell<BTreeMap<RequestId, Asked>>,
}

impl Desk {
    pub(super) const fn new(tokenizer: Arc<Tokenizer>, eos: Vec<u32>) -> Self {
        Self { tokenizer, eos, asked: RefCell::new(BTreeMap::new()) }
    }

    /// Takes a request in.
    ///
    /// # Errors
    ///
    /// A sampling option out of its range.
    pub(super) fn take(
        &self,
        id: RequestId,
        submission: &Submission,
        events: Events,
    ) -> Result<(), SamplingError> {
        let sampler = Sampler::new(submission.sampling, &submission.prompt)?;
        let stop: Vec<String> =
            submission.stop.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        let asked = Asked {
            events,
            sampler,
            text: TextStream::default(),
            stops: StopStrings::new(&stop),
            stop,
            stop_token_ids: submission.stop_token_ids.clone(),
            eos: submission.eos,
            tokens: TokenUse { prompt: submission.prompt.len() as u64, ..TokenUse::default() },
            admitted: false,
            matched: None,
        };
        self.asked.borrow_mut().insert(id, asked);
        Ok(())
    }

    /// Chooses the next token of a request from its logits and tells it.
    pub(super) fn choose(&self, request: RequestId, logits: &[f32]) -> Made {
        self.made(request, |sampler| sampler.next(logits))
    }

    /// The draw by which a model chooses the next token of a request. `None`: its choice needs the logits.
    pub(super) fn draw(&self, request: RequestId) -> Option<Draw> {
        match self.asked.borrow_mut().get_mut(&request) {
            Some(asked) => asked.sampler.draw_elsewhere(),
            None => Some(Draw::GREEDY),
        }
    }

    /// Takes the token that a model chose by [`Desk::draw`] and tells it.
    pub(super) fn drawn(&self, request: RequestId, token: u32) -> Made {
        self.made(request, |_| Sampled { token, logprob: None, top: Vec::new() })
    }

    fn made(&self, request: RequestId, next: impl FnOnce(&mut Sampler) -> Sampled) -> Made {
        match self.asked.borrow_mut().get_mut(&request) {
            Some(asked) => {
                let sampled = next(&mut asked.sampler);
                let token = sampled.token;
                let ends = asked.made(sampled, &self.tokenizer, &self.eos);
                Made { request, token, ends }
            }
            // Of a request that nobody knows nothing is wanted.
            None => Made { request, token: self.eos.first().copied().unwrap_or(0), ends: true },
        }
    }

    /// A request is in a batch for the first time, with so many tokens of it cached.
    pub(super) fn admitted(&self, request: RequestId, cached: u64) -> Option<u64> {
        let mut all = self.asked.borrow_mut();
        let asked = all.get_mut(&request).filter(|asked| !asked.admitted)?;
        asked.admitted = true;
        asked.tokens.cached = cached.min(asked.tokens.prompt);
        Some(asked.tokens.cached)
    }

    /// A request is over.
    pub(super) fn finished(&self, request: RequestId, finish: Finish) {
        let Some(mut asked) = self.asked.borrow_mut().remove(&request) else { return };
        let held = match asked.matched {
            // What a stop string was found in is no part of the answer.
            Some(Matched::Text(_)) => String::new(),
            _ => asked.rest(&self.tokenizer),
        };
        if asked.events.unread() > MOST_UNREAD {
            let message = format!("more than {MOST_UNREAD} tokens were left unread");
            return asked.tell(Event::Refused(Refusal { code: "slow_reader", message }));
        }
        let (matched, tokens) = (asked.matched.take(), asked.tokens);
        asked.tell(Event::Finished(Ended { finish, matched, text: held, tokens }));
    }

    /// A request is turned away.
    pub(super) fn refused(&self, request: RequestId, refusal: Refusal) {
        if let Some(asked) = self.asked.borrow_mut().remove(&request) {
            asked.tell(Event::Refused(refusal));
        }
    }

    /// The engine is gone: everybody hears why.
    pub(super) fn give_up(&self, message: &str) {
        let all: Vec<RequestId> = self.asked.borrow().keys().copied().collect();
        for request in all {
            let refusal = Refusal { code: "engine_gone", message: message.to_owned() };
            self.refused(request, refusal);
        }
    }
}

impl Asked {
    fn tell(&self, event: Event) {
        // Who does not listen any more gives the request up by himself.
        let _ = self.events.send(event);
    }

    /// Takes a token; says whether it is the last.
    fn made(&mut self, sampled: Sampled, tokenizer: &Tokenizer, eos: &[u32]) -> bool {
        self.tokens.completion += 1;
        let token = sampled.token;
        let by_id = self.stop_token_ids.contains(&token);
        if by_id || (self.eos == EosRule::Ends && eos.contains(&token)) {
            self.matched = Some(Matched::Token(token));
            return true;
        }
        // A tokenizer that cannot decode an id of its own has no text for it.
        let text = self.text.push(tokenizer, token).unwrap_or_default();
        let certain = self.stops.push(&text);
        let Sampled { token, logprob, top } = sampled;
        self.tell(Event::Token(Piece { token, text: certain.text, logprob, top }));
        if let Some(stop) = certain.stop {
            self.matched = Some(Matched::Text(self.stop.get(stop).cloned().unwrap_or_default()));
        }
        certain.stop.is_some() || self.events.unread() > MOST_UNREAD
    }

    /// Text that was held back, when no more comes.
    fn rest(&mut self, tokenizer: &Tokenizer) -> String {
        let text = self.text.finish(tokenizer).unwrap_or_default();
        let certain = self.stops.push(&text);
        certain.text + &self.stops.finish()
    }
}
