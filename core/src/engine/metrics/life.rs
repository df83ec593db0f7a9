//! What is remembered of one request.

/// No time yet.
const NEVER: u64 = u64::MAX;

/// One request, from its arrival on; times in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) arrived: u64,
    pub(super) prompt: u64,
    /// When the first token came.
    pub(super) first: u64,
    /// When the latest token came.
    pub(super) last: u64,
    /// When the token before the latest came, as long as their gap is not counted: the latest may still
    /// turn out not to be one.
    before: u64,
    /// Tokens that came.
    pub(super) tokens: u64,
    /// Positions of its sequence that were computed so far.
    pub(super) computed: u64,
    pub(super) stage: Stage,
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Waits,
    Admitted,
    Over,
}

impl Life {
    pub(super) const fn new(arrived: u64, prompt: u64) -> Self {
        Self {
            arrived,
            prompt,
            first: NEVER,
            last: NEVER,
            before: NEVER,
            tokens: 0,
            computed: 0,
            stage: Stage::Waits,
        }
    }

    /// A token comes at `at`. Answers the gap before the latest one, which is certain now.
    pub(super) const fn token(&mut self, at: u64) -> Option<u64> {
        let gap = self.settle();
        if self.tokens == 0 {
            self.first = at;
        } else {
            self.before = self.last;
        }
        self.last = at;
        self.tokens += 1;
        gap
    }

    /// `more` tokens came after the latest, the last two of them at `before` and `last`. The gaps up to
    /// `before` are the caller's business.
    pub(super) const fn tokens_in_a_row(&mut self, more: u64, before: u64, last: u64) {
        self.before = before;
        self.last = last;
        self.tokens += more;
    }

    /// The gap before the latest token, once.
    pub(super) const fn settle(&mut self) -> Option<u64> {
        let gap = self.open_gap();
        self.before = NEVER;
        gap
    }

    /// The gap before the latest token, unless it is counted already.
    pub(super) const fn open_gap(&self) -> Option<u64> {
        match self.before {
            NEVER => None,
            before => Some(self.last.saturating_sub(before)),
        }
    }

    /// The request has `outputs` tokens: a pass that was under way brought it none.
    pub(super) const fn keep(&mut self, outputs: u64) {
        if self.tokens > outputs {
            match self.before {
                NEVER => {}
                before => self.last = before,
            }
            self.before = NEVER;
        }
        self.tokens = outputs;
        if outputs == 0 {
            (self.first, self.last) = (NEVER, NEVER);
        }
    }

    /// Takes the latest token back where it comes after `now`.
    pub(super) const fn cut(&mut self, now: u64) {
        if self.tokens > 0 && self.last > now {
            self.keep(self.tokens - 1);
        }
    }

    /// Tokens of `prefix` and the `extend` after it are computed. Answers how many of the latter were before.
    pub(super) fn compute(&mut self, prefix: u64, extend: u64) -> u64 {
        let end = prefix + extend;
        let again = self.computed.min(end).saturating_sub(prefix);
        self.computed = self.computed.max(end);
        again
    }
}
