//! Conversations: the prompt of a turn is the one before, its answer, and new tokens.

use super::{draw::Drawer, group_sender::limit_law, stream::Stream};
use crate::scenario::{Group, Turns};
use plimsoll_core::{
    kv::Runs,
    sched::{Finish, OutputIds, RequestId},
    units::Nanos,
};
use std::collections::BTreeMap;

/// One conversation. Its lengths are drawn from streams of its own, so that none depends on which of several
/// answers comes first.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    /// What was said, the next prompt's beginning.
    pub(super) history: Runs,
    /// New tokens of the first turn, until it is sent.
    first: Option<u64>,
    turns_left: u64,
    prompts: Drawer,
    outputs: Drawer,
    limits: Option<Drawer>,
}

impl Conversation {
    pub(super) const fn with_first(mut self, tokens: u64) -> Self {
        self.first = Some(tokens);
        self
    }

    /// New tokens of the next turn, its answer, and the limit that the client asks for.
    pub(super) fn next_turn(&mut self) -> (u64, u64, Option<u64>) {
        self.turns_left = self.turns_left.saturating_sub(1);
        let tokens = self.first.take().unwrap_or_else(|| self.prompts.next());
        (tokens, self.outputs.next(), self.limits.as_mut().map(Drawer::next))
    }
}

/// A turn that is under way.
#[derive(Clone, Debug)]
struct UnderWay {
    conversation: Conversation,
    /// Tokens after which the model ends it.
    output_len: u64,
}

/// The conversations of a group.
#[derive(Clone, Debug)]
pub(super) struct Conversations {
    turns: Turns,
    group: Group,
    seed: u64,
    counts: Drawer,
    under_way: BTreeMap<u64, UnderWay>,
    /// Those that go on, by time and by the number of their last request.
    due: BTreeMap<(Nanos, u64), Conversation>,
    /// Turns of those under way that are not sent yet.
    to_come: u64,
}

impl Conversations {
    pub(super) fn new(turns: Turns, group: &Group, seed: u64) -> Self {
        let counts =
            Drawer::new(turns.count.clone(), Stream::named(seed, &group.name, "turns.count"));
        let (under_way, due) = (BTreeMap::new(), BTreeMap::new());
        Self { turns, group: group.clone(), seed, counts, under_way, due, to_come: 0 }
    }

    /// Turns of so many conversations, from the beginning.
    pub(super) fn total(&self, conversations: u64) -> u64 {
        let stream = Stream::named(self.seed, &self.group.name, "turns.count");
        let mut counts = Drawer::new(self.turns.count.clone(), stream);
        (0..conversations).map(|_| counts.next()).sum()
    }

    pub(super) const fn is_done(&self) -> bool {
        self.to_come == 0
    }

    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// The conversation that goes on next.
    pub(super) fn take(&mut self) -> Option<Conversation> {
        self.due.pop_first().map(|(_, conversation)| conversation)
    }

    /// A new one, the so-manieth, that begins with `history`.
    pub(super) fn open(&mut self, index: u64, history: Runs) -> Conversation {
        let stream = |purpose: &str| {
            Stream::named(self.seed, &self.group.name, &format!("turns.{purpose}/{index}"))
        };
        let turns_left = self.counts.next();
        self.to_come += turns_left;
        let shape = &self.group.shape;
        Conversation {
            history,
            first: None,
            turns_left,
            prompts: Drawer::new(self.turns.prompt_tokens.clone(), stream("prompt_tokens")),
            outputs: Drawer::new(shape.output_tokens.clone(), stream("output_tokens")),
            limits: limit_law(&self.group)
                .map(|law| Drawer::new(law.clone(), stream("max_tokens"))),
        }
    }

    /// A turn was sent under this number.
    pub(super) fn sent(&mut self, number: u64, output_len: u64, conversation: Conversation) {
        self.to_come = self.to_come.saturating_sub(1);
        self.under_way.insert(number, UnderWay { conversation, output_len });
    }

    /// A turn is over. Answers whether its conversation goes on; one whose turn was given up does not.
    pub(super) fn ended(&mut self, number: u64, finish: Finish, outputs: u64, now: Nanos) -> bool {
        let Some(UnderWay { mut conversation, output_len }) = self.under_way.remove(&number) else {
            return false;
        };
        if finish == Finish::Abort || conversation.turns_left == 0 {
            self.to_come = self.to_come.saturating_sub(conversation.turns_left);
            return false;
        }
        let answer = OutputIds::default().made(RequestId(number), outputs, output_len);
        conversation.history.extend(&answer);
        let at = Nanos(now.0.saturating_add(self.turns.think_time.0));
        self.due.insert((at, number), conversation);
        true
    }
}
