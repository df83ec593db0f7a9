//! From bytes to pieces of lines, in constant memory: gzip, UTF-16, carriage returns, endless lines.

use std::io::{self, BufRead, BufReader, Read};

use memchr::memchr2;

/// Bytes of a line that are read; the rest of it is skipped.
pub(super) const LINE: usize = 64 * 1024;

/// Size of the buffer behind a decoder.
const BUFFER: usize = 256 * 1024;

/// A piece of text: a whole line, or what stands between two carriage returns of one (a progress bar).
pub(super) struct Piece<'a> {
    /// Its bytes, without the line end, at most [`LINE`].
    pub(super) bytes: &'a [u8],
    /// The line it stands in, from 1.
    pub(super) line: u64,
    /// Bytes of it that were skipped.
    pub(super) skipped: u64,
}

/// What a text amounted to.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Amounts {
    /// Lines.
    pub(super) lines: u64,
    /// Bytes after decoding.
    pub(super) bytes: u64,
    /// The compressed file ended early or is damaged.
    pub(super) damaged: bool,
}

/// Hands every piece of a text to `take`, decoded as its first bytes say.
///
/// # Errors
/// What the reader answers; damage of a compressed file is no error but marked in the result.
pub(super) fn pieces(
    text: &mut dyn BufRead,
    take: &mut dyn FnMut(&Piece<'_>),
) -> io::Result<Amounts> {
    let head = peek(text)?;
    let start = head.as_slice();
    if start.starts_with(&[0x1f, 0x8b]) {
        let decoder =
            flate2::bufread::MultiGzDecoder::new(Again { head: &head, at: 0, rest: text });
        let mut plain = BufReader::with_capacity(BUFFER, decoder);
        let inner = peek(&mut plain);
        return match inner {
            Ok(inner) => decoded(&inner, &mut plain, take, Damage::Marked),
            Err(error) if is_damage(&error) => Ok(Amounts { damaged: true, ..Amounts::default() }),
            Err(error) => Err(error),
        };
    }
    decoded(&head, text, take, Damage::Error)
}

/// Whether what a decoder cannot read ends the text or is an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    Marked,
    Error,
}

fn decoded(
    head: &[u8],
    rest: &mut dyn BufRead,
    take: &mut dyn FnMut(&Piece<'_>),
    damage: Damage,
) -> io::Result<Amounts> {
    let big = head.starts_with(&[0xfe, 0xff]);
    if big || head.starts_with(&[0xff, 0xfe]) {
        let text = Again { head, at: 2, rest };
        let wide = Utf16 { text, big, ready: Vec::new(), at: 0, high: None };
        return split(&mut BufReader::with_capacity(BUFFER, wide), take, damage);
    }
    let mark = if head.starts_with(&[0xef, 0xbb, 0xbf]) { 3 } else { 0 };
    split(&mut Again { head, at: mark, rest }, take, damage)
}

/// The first three bytes, or fewer where there are no more.
fn peek(text: &mut dyn BufRead) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(3);
    text.take(3).read_to_end(&mut head)?;
    Ok(head)
}

fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

fn split(
    text: &mut dyn BufRead,
    take: &mut dyn FnMut(&Piece<'_>),
    damage: Damage,
) -> io::Result<Amounts> {
    let mut splitter = Splitter { carry: Vec::new(), skipped: 0, line: 1, take };
    let mut amounts = Amounts::default();
    let mut last = b'\n';
    loop {
        let buffer = match text.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if damage == Damage::Marked && is_damage(&error) => {
                amounts.damaged = true;
                break;
            }
            Err(error) => return Err(error),
        };
        let Some(&end) = buffer.last() else { break };
        last = end;
        splitter.feed(buffer);
        let length = buffer.len();
        amounts.bytes += length as u64;
        text.consume(length);
    }
    splitter.end();
    amounts.lines = splitter.line - u64::from(last == b'\n');
    Ok(amounts)
}

struct Splitter<'t> {
    /// The beginning of a piece whose end is not there yet.
    carry: Vec<u8>,
    skipped: u64,
    line: u64,
    take: &'t mut dyn FnMut(&Piece<'_>),
}

impl Splitter<'_> {
    fn feed(&mut self, mut buffer: &[u8]) {
        while let Some(at) = memchr2(b'\n', b'\r', buffer) {
            let (piece, rest) = buffer.split_at(at);
            if self.carry.is_empty() && self.skipped == 0 && piece.len() <= LINE {
                give(self.take, piece, self.line, 0);
            } else {
                self.keep(piece);
                self.end();
            }
            if rest.first() == Some(&b'\n') {
                self.line += 1;
            }
            buffer = rest.get(1..).unwrap_or(&[]);
        }
        self.keep(buffer);
    }

    /// Keeps the part of a piece; a hole of NULs that a truncated file begins with is none of it.
    fn keep(&mut self, part: &[u8]) {
        let part = if self.carry.is_empty() { after_nuls(part) } else { part };
        let room = LINE.saturating_sub(self.carry.len()).min(part.len());
        self.carry.extend_from_slice(part.get(..room).unwrap_or(part));
        self.skipped += (part.len() - room) as u64;
    }

    fn end(&mut self) {
        give(self.take, &self.carry, self.line, self.skipped);
        self.carry.clear();
        self.skipped = 0;
    }
}

fn give(take: &mut dyn FnMut(&Piece<'_>), bytes: &[u8], line: u64, skipped: u64) {
    let bytes = after_nuls(bytes);
    if !bytes.is_empty() {
        take(&Piece { bytes, line, skipped });
    }
}

fn after_nuls(bytes: &[u8]) -> &[u8] {
    let nuls = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(nuls..).unwrap_or(&[])
}

/// The bytes looked at, then the rest.
struct Again<'a> {
    head: &'a [u8],
    at: usize,
    rest: &'a mut dyn BufRead,
}

impl Read for Again<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let count = from.len().min(into.len());
        for (to, byte) in into.iter_mut().zip(from) {
            *to = *byte;
        }
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Again<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.head.get(self.at..) {
            Some(head) if !head.is_empty() => Ok(head),
            _ => self.rest.fill_buf(),
        }
    }

    fn consume(&mut self, amount: usize) {
        if self.at < self.head.len() {
            self.at += amount;
        } else {
            self.rest.consume(amount);
        }
    }
}

/// UTF-16 to UTF-8; a lone surrogate and half a unit at the end become the replacement character.
struct Utf16<R> {
    text: R,
    big: bool,
    ready: Vec<u8>,
    at: usize,
    /// A high surrogate that waits for its other half.
    high: Option<u16>,
}

impl<R: Read> Utf16<R> {
    fn refill(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.at = 0;
        let mut raw = Vec::with_capacity(8192);
        (&mut self.text).take(8192).read_to_end(&mut raw)?;
        let mut units: Vec<u16> = self.high.take().into_iter().collect();
        let pairs = raw.chunks(2).map(|pair| match *pair {
            [a, b] if self.big => u16::from_be_bytes([a, b]),
            [a, b] => u16::from_le_bytes([a, b]),
            _ => 0xfffd,
        });
        units.extend(pairs);
        if raw.len() == 8192
            && let Some(high) = units.pop_if(|unit| (0xd800..0xdc00).contains(unit))
        {
            self.high = Some(high);
        }
        let mut bytes = [0; 4];
        for unit in char::decode_utf16(units) {
            let text = unit.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut bytes);
            self.ready.extend_from_slice(text.as_bytes());
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.ready.len() {
            self.refill()?;
        }
        let from = self.ready.get(self.at..).unwrap_or(&[]);
        let count = from.len().min(into.len());
        for (to, byte) in into.iter_mut().zip(from) {
            *to = *byte;
        }
        self.at += count;
        Ok(count)
    }
}
