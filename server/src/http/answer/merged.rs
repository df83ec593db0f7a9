//! Several tickets as one line of events.

use std::task::{Context, Poll};

use crate::engine::{Event, Ticket};

/// Tickets of one request, heard in turn. Dropping it gives up those that are not over.
#[derive(Debug)]
pub(super) struct Merged {
    tickets: Vec<Option<Ticket>>,
    open: usize,
    /// Who is asked first.
    next: usize,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    /// Something happened to the request at that place.
    Event(usize, Event),
    /// The engine died with requests unanswered.
    Gone,
    /// All are over.
    Over,
}

impl Merged {
    pub(super) fn new(tickets: Vec<Ticket>) -> Self {
        let open = tickets.len();
        Self { tickets: tickets.into_iter().map(Some).collect(), open, next: 0 }
    }

    /// The next event of any of them.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        if self.open == 0 {
            return Poll::Ready(Next::Over);
        }
        let count = self.tickets.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            let Some(slot) = self.tickets.get_mut(at) else { continue };
            let Some(ticket) = slot else { continue };
            match ticket.poll_next(context) {
                Poll::Pending => {}
                Poll::Ready(None) => return Poll::Ready(Next::Gone),
                Poll::Ready(Some(event)) => {
                    if matches!(event, Event::Finished(_) | Event::Refused(_)) {
                        *slot = None;
                        self.open -= 1;
                    }
                    self.next = at + 1;
                    return Poll::Ready(Next::Event(at, event));
                }
            }
        }
        Poll::Pending
    }
}
