//! Where results go and how words are coloured. Colour never carries meaning alone.

use crate::{
    args::{ColorWhen, OutputArgs},
    exit::Failure,
    host::Host,
};
use anstyle::{AnsiColor, Color, Style};
use std::{fs, io, io::Write as _};

/// Widest line for people.
pub const WIDEST: usize = 100;

/// Writes one result and knows whether to colour it.
pub struct Output {
    color: bool,
    width: usize,
    blocks: bool,
    file: Option<std::path::PathBuf>,
    door: Door,
}

/// Who asked.
pub enum Door {
    /// The command line of this process.
    Process,
    /// A program that this runs in.
    Host(Host),
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
        let file = args.output.clone();
        Self { color, width: width(args), blocks: has_blocks(), file, door: Door::Process }
    }

    /// For a host program: no terminal is asked, no colour but where the flags want it.
    pub fn of_host(args: &OutputArgs, host: Host) -> Self {
        let color = args.color == ColorWhen::Always;
        let file = args.output.clone();
        Self { color, width: WIDEST, blocks: has_blocks(), file, door: Door::Host(host) }
    }

    /// The host program, where there is one.
    pub const fn host(&self) -> Option<&Host> {
        match &self.door {
            Door::Process => None,
            Door::Host(host) => Some(host),
        }
    }

    /// Who asked, with what was written.
    pub fn into_door(self) -> Door {
        self.door
    }

    /// Says something about the run on stderr.
    pub fn note(&self, text: &str) {
        match &self.door {
            Door::Process => drop(writeln!(io::stderr().lock(), "{text}")),
            Door::Host(host) => host.note(text),
        }
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
    /// The file or stdout cannot be written. A closed pipe on stdout is not an error.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        let (place, written) = match (&self.file, &self.door) {
            (Some(path), _) => (path.display().to_string(), fs::write(path, text)),
            (None, Door::Host(host)) => {
                host.write(text);
                return Ok(());
            }
            (None, Door::Process) => {
                let mut out = io::stdout().lock();
                let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                ("stdout".to_owned(), written)
            }
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|e| Failure::input(format!("cannot write {place}: {e}"))),
        }
    }

    /// Whether results go to a file of the flags, which every write begins anew.
    pub const fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether plots may use characters beyond ASCII: a UTF-8 locale, and no `NO_COLOR`.
    pub const fn has_blocks(&self) -> bool {
        self.blocks
    }

    /// Columns that lines for people may take: the terminal's, at most 100.
    pub const fn width(&self) -> usize {
        self.width
    }
}

/// The locale is the first of the three variables that is set to something, as in POSIX.
fn has_blocks() -> bool {
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let plain = set(&"NO_COLOR").is_some();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    !plain && (locale.contains("utf-8") || locale.contains("utf8"))
}

/// The terminal's width where stdout is one; never below 40 nor above 100.
fn width(args: &OutputArgs) -> usize {
    let terminal = terminal_size::terminal_size_of(io::stdout()).filter(|_| args.output.is_none());
    terminal.map_or(WIDEST, |(width, _)| usize::from(width.0).clamp(40, WIDEST))
}
