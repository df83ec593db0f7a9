//! Stop strings over a streamed text: what may still become one is held back.

/// The stop strings of one request.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
}

/// What is certain after a piece of text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certain {
    /// Text that can be given out.
    pub text: String,
    /// Which stop string ended the text, by its index; nothing comes after it.
    pub stop: Option<usize>,
}

impl StopStrings {
    /// Empty strings are left out.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new() }
    }

    /// Adds a piece. The stop that begins first ends the text, without it; of two that begin at one place
    /// the first of the list.
    pub fn push(&mut self, piece: &str) -> Certain {
        self.held.push_str(piece);
        let found = self.stops.iter().enumerate();
        let found = found.filter_map(|(i, stop)| self.held.find(stop.as_str()).map(|at| (at, i)));
        // What begins earlier may still be on its way.
        let open = self.open();
        if let Some((at, stop)) = found.min()
            && at <= open
        {
            let text = self.held[..at].to_owned();
            self.held.clear();
            return Certain { text, stop: Some(stop) };
        }
        let rest = self.held.split_off(open);
        Certain { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// What was held back, when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The first place from which the text could still become a stop string.
    fn open(&self) -> usize {
        let begins = |at: &usize| {
            let rest = &self.held[*at..];
            self.stops.iter().any(|stop| stop.len() > rest.len() && stop.starts_with(rest))
        };
        let places = self.held.char_indices().map(|(at, _)| at);
        places.into_iter().find(begins).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut strings = StopStrings::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let certain = strings.push(piece);
            text.push_str(&certain.text);
            if certain.stop.is_some() {
                return (text, certain.stop);
            }
        }
        (text + &strings.finish(), None)
    }

    #[test]
    fn a_stop_string_may_come_in_pieces() {
        assert_eq!(run(&["END"], &["abE", "N", "Dx"]), ("ab".to_owned(), Some(0)));
        assert_eq!(run(&["END"], &["abE", "N", "x"]), ("abENx".to_owned(), None));
        assert_eq!(run(&["é!"], &["aé", "é!"]), ("aé".to_owned(), Some(0)));
        assert_eq!(run(&["", "b"], &["abc"]), ("a".to_owned(), Some(0)));
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(
            text in "[ab]{0,24}", stops in prop::collection::vec("[ab]{1,4}", 1..3),
            cuts in prop::collection::vec(1_usize..4, 24),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            let (found, stop) = run(&stops, &pieces);
            let first = stops.iter().filter_map(|s| text.find(s)).min();
            prop_assert_eq!(stop.is_some(), first.is_some());
            prop_assert_eq!(found.as_str(), &text[..first.unwrap_or(text.len())]);
        }
    }
}
