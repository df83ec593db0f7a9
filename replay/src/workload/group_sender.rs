//! One group on its way: requests that are drawn, alone or as turns of conversations.

use super::{
    connections::{Connections, free},
    conversation::{Conversation, Conversations},
    draw::{Drawer, Due},
    prefix::Prefixes,
    stream::Stream,
};
use crate::scenario::{Group, Lengths, MaxTokens};
use plimsoll_core::{
    engine::serving::Sampling,
    kv::{Run, Runs},
    sched::{Finish, NewRequest, RequestId},
    units::Nanos,
};

/// Token ids of a request's own part begin at (its number + 1) × 2^32: no two requests share one.
const OWN_IDS: u32 = 32;

/// Tokens that only this request has.
pub(super) const fn own_tokens(number: u64, len: u64) -> Run {
    Run { first: (number + 1) << OWN_IDS, len }
}

/// The group and how far it is.
#[derive(Clone, Debug)]
pub(super) struct GroupSender {
    group: Group,
    sent: u64,
    due: Due,
    connections: Option<Connections>,
    prompts: Drawer,
    outputs: Drawer,
    limits: Option<Drawer>,
    prefixes: Option<Prefixes>,
    conversations: Option<Conversations>,
}

impl GroupSender {
    pub(super) fn new(group: &Group, seed: u64, first_prefix: u64) -> Self {
        let stream = |purpose| Stream::named(seed, &group.name, purpose);
        let shape = &group.shape;
        let limits = match &shape.max_tokens {
            MaxTokens::Lengths(lengths) => Some(Drawer::new(lengths.clone(), stream("max_tokens"))),
            MaxTokens::Output | MaxTokens::Engine => None,
        };
        let prefixes = |prefix: &crate::scenario::SharedPrefix| {
            Prefixes::new(prefix.clone(), group.requests, first_prefix, seed, &group.name)
        };
        Self {
            sent: 0,
            due: Due::new(group.schedule, stream("arrivals"), group.requests),
            connections: group.concurrency.map(Connections::new),
            prompts: Drawer::new(shape.prompt_tokens.clone(), stream("prompt_tokens")),
            outputs: Drawer::new(shape.output_tokens.clone(), stream("output_tokens")),
            limits,
            prefixes: group.shared_prefix.as_ref().map(prefixes),
            conversations: group.turns.clone().map(|turns| Conversations::new(turns, group, seed)),
            group: group.clone(),
        }
    }

    /// Requests of the whole group. Costs by conversation where there are any.
    pub(super) fn total(&self) -> u64 {
        match &self.conversations {
            None => self.group.requests,
            Some(conversations) => conversations.total(self.group.requests),
        }
    }

    pub(super) const fn sampling(&self) -> Sampling {
        self.group.shape.sampling
    }

    pub(super) fn is_done(&self) -> bool {
        let turns = self.conversations.as_ref().is_some_and(|turns| !turns.is_done());
        self.sent >= self.group.requests && !turns
    }

    /// Whether it wants to know how its requests end.
    pub(super) const fn follows_ends(&self) -> bool {
        self.connections.is_some() || self.conversations.is_some()
    }

    /// When the next request is sent: it is due, and a connection is free; or a conversation goes on.
    pub(super) fn next_at(&self) -> Option<Nanos> {
        let turn = self.conversations.as_ref().and_then(Conversations::next_at);
        let new = match self.sent < self.group.requests {
            true => free(self.connections.as_ref()).map(|free| self.due.next().max(free)),
            false => None,
        };
        // `None` is no time at all, and not the earliest.
        turn.into_iter().chain(new).min()
    }

    /// The next request, under its number, at its time.
    pub(super) fn send(&mut self, number: u64, at: Nanos) -> NewRequest {
        let due =
            self.conversations.as_mut().filter(|turns| turns.next_at().is_some_and(|t| t <= at));
        if let Some(conversation) = due.and_then(Conversations::take) {
            return self.send_turn(number, conversation);
        }
        let index = self.sent;
        self.sent += 1;
        self.due.advance();
        if let Some(connections) = &mut self.connections {
            connections.take();
        }
        let mut prompt = Runs::new();
        if let Some(prefixes) = &mut self.prefixes {
            prompt.push(prefixes.next());
        }
        if let Some(conversations) = &mut self.conversations {
            let conversation = conversations.open(index, prompt);
            let first = self.prompts.next();
            return self.send_turn(number, conversation.with_first(first));
        }
        prompt.push(own_tokens(number, self.prompts.next()));
        let output = self.outputs.next();
        let limit = self.limits.as_mut().map(Drawer::next);
        self.request(number, prompt, output, limit)
    }

    fn send_turn(&mut self, number: u64, mut conversation: Conversation) -> NewRequest {
        let (tokens, output, limit) = conversation.next_turn();
        conversation.history.push(own_tokens(number, tokens));
        let prompt = conversation.history.clone();
        if let Some(conversations) = &mut self.conversations {
            conversations.sent(number, output, conversation);
        }
        self.request(number, prompt, output, limit)
    }

    fn request(
        &self,
        number: u64,
        prompt: Runs,
        output_len: u64,
        limit: Option<u64>,
    ) -> NewRequest {
        let shape = &self.group.shape;
        let max_new_tokens = match &shape.max_tokens {
            MaxTokens::Engine => None,
            MaxTokens::Output | MaxTokens::Lengths(_) => Some(limit.unwrap_or(output_len)),
        };
        let (eos, logprob_start, priority) = (shape.eos, shape.logprob_start, shape.priority);
        NewRequest {
            max_new_tokens,
            output_len,
            eos,
            logprob_start,
            priority,
            ..NewRequest::plain(RequestId(number), prompt, output_len)
        }
    }

    /// A request is over: its connection is free after the think time, or its conversation goes on.
    pub(super) fn ended(&mut self, number: u64, finish: Finish, outputs: u64, now: Nanos) {
        if let Some(conversations) = &mut self.conversations
            && conversations.ended(number, finish, outputs, now)
        {
            return;
        }
        if let Some(connections) = &mut self.connections {
            connections.give_back(Nanos(now.0.saturating_add(self.group.think_time.0)));
        }
    }
}

/// The law of the limits, where the client asks for some.
pub(super) fn limit_law(group: &Group) -> Option<&Lengths> {
    match &group.shape.max_tokens {
        MaxTokens::Lengths(lengths) => Some(lengths),
        MaxTokens::Output | MaxTokens::Engine => None,
    }
}
