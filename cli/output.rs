//! Where results go and how words are coloured. Colour never carries meaning alone.

use crate::args::{ColorWhen, OutputArgs};
use anstyle::{AnsiColor, Color, Style};
use std::{fs, io, io::Write as _};

/// Writes one result and knows whether to colour it.
pub struct Output {
    color: bool,
    file: Option<std::path::PathBuf>,
}

/// What a word means; the word itself says it too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// It fails.
    Bad,
    /// It is close.
    Close,
    /// It holds.
    Good,
    /// A value to change.
    Change,
    /// Less important.
    Dim,
}

impl Tone {
    fn style(self) -> Style {
        let color = |c: AnsiColor| Style::new().fg_color(Some(Color::Ansi(c)));
        match self {
            Self::Bad => color(AnsiColor::Red).bold(),
            Self::Close => color(AnsiColor::Yellow).bold(),
            Self::Good => color(AnsiColor::Green).bold(),
            Self::Change => color(AnsiColor::Cyan),
            Self::Dim => Style::new().dimmed(),
        }
    }
}

impl Output {
    /// From the flags, the terminal and `NO_COLOR` / `CLICOLOR_FORCE`.
    pub fn new(args: &OutputArgs) -> Self {
        let auto = || {
            let choice = anstream::AutoStream::choice(&io::stdout());
            args.output.is_none() && choice != anstream::ColorChoice::Never
        };
        let color = match args.color {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => auto(),
        };
        Self { color, file: args.output.clone() }
    }

    /// `text` in the colour of its meaning.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if self.color {
            let style = tone.style();
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    /// Writes the result.
    ///
    /// # Errors
    ///
    /// The file cannot be written. A closed pipe on stdout is not an error.
    pub fn write(&self, text: &str) -> io::Result<()> {
        if let Some(path) = &self.file {
            return fs::write(path, text);
        }
        match io::stdout().lock().write_all(text.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

/// Says something about the run on stderr.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
