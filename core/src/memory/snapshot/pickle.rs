//! Reads the subset of pickle that a snapshot uses: plain values, no classes, no code.
//!
//! Safe for hostile bytes: nothing is called or built by name, every opcode adds a bounded amount, and
//! what is not plain data is an error with its place.

use std::collections::BTreeMap;

/// Largest pickle that is read, bytes.
pub const MAX_BYTES: usize = 1 << 30;

/// Why bytes are not the pickle of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pickle, byte {at}: {problem}")]
pub struct PickleError {
    /// Offset of the opcode.
    pub at: usize,
    /// What is wrong there.
    pub problem: String,
}

/// A value; containers and texts point elsewhere, so that shared ones stay shared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Item {
    Null,
    Bool(bool),
    Int(i64),
    /// Above `i64::MAX`.
    Large(u64),
    Float(f64),
    Text {
        at: u32,
        length: u32,
    },
    /// List or tuple, by node.
    List(u32),
    /// Dictionary, by node: keys and values in turn.
    Dict(u32),
}

/// What a pickle holds.
pub(super) struct Arena<'a> {
    bytes: &'a [u8],
    nodes: Vec<Vec<Item>>,
    pub(super) root: Item,
}

impl<'a> Arena<'a> {
    pub(super) fn node(&self, index: u32) -> &[Item] {
        &self.nodes[index as usize]
    }

    pub(super) fn text(&self, at: u32, length: u32) -> &'a str {
        let bytes = self.bytes.get(at as usize..at as usize + length as usize);
        // Checked when it was read.
        bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    opcode_at: usize,
    stack: Vec<Item>,
    marks: Vec<usize>,
    memo: Vec<Item>,
    /// Memo entries beyond the dense ones.
    far_memo: BTreeMap<u32, Item>,
    nodes: Vec<Vec<Item>>,
}

/// Runs the pickle.
pub(super) fn load(bytes: &[u8]) -> Result<Arena<'_>, PickleError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        opcode_at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        far_memo: BTreeMap::new(),
        nodes: Vec::new(),
    };
    if bytes.len() > MAX_BYTES {
        return Err(machine.fault(format!("{} bytes are more than {MAX_BYTES}", bytes.len())));
    }
    loop {
        machine.opcode_at = machine.at;
        let opcode = machine.take::<1>()?[0];
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok(Arena { bytes, nodes: machine.nodes, root });
        }
        machine.step(opcode)?;
    }
}

impl Machine<'_> {
    fn fault(&self, problem: impl Into<String>) -> PickleError {
        PickleError { at: self.opcode_at, problem: problem.into() }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let found = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<N>).copied();
        let found = found.ok_or_else(|| self.fault("cut short"))?;
        self.at += N;
        Ok(found)
    }

    fn byte(&mut self) -> Result<usize, PickleError> {
        Ok(usize::from(self.take::<1>()?[0]))
    }

    fn pop(&mut self) -> Result<Item, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.fault("nothing on the stack"));
        }
        self.stack.pop().ok_or_else(|| self.fault("nothing on the stack"))
    }

    fn pop_mark(&mut self) -> Result<Vec<Item>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.fault("no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn push(&mut self, item: Item) -> Result<(), PickleError> {
        self.stack.push(item);
        Ok(())
    }

    fn add(&mut self, items: Vec<Item>) -> u32 {
        self.nodes.push(items);
        // At most one node a byte, and at most 2^30 bytes.
        self.nodes.len() as u32 - 1
    }

    fn push_list(&mut self, items: Vec<Item>) -> Result<(), PickleError> {
        let node = self.add(items);
        self.push(Item::List(node))
    }

    fn step(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            0x80 => match self.byte()? {
                0..=5 => Ok(()),
                other => Err(self.fault(format!("protocol {other} is not known"))),
            },
            0x95 => self.take::<8>().map(|_| ()),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push(Item::Null),
            0x88 => self.push(Item::Bool(true)),
            0x89 => self.push(Item::Bool(false)),
            b'K' | b'M' | b'J' | 0x8a => self.number(opcode),
            b'G' => {
                let float = f64::from_be_bytes(self.take()?);
                self.push(Item::Float(float))
            }
            0x8c | b'X' | 0x8d => self.string(opcode),
            b']' | b')' => self.push_list(Vec::new()),
            b'}' => {
                let node = self.add(Vec::new());
                self.push(Item::Dict(node))
            }
            b'l' | b't' => {
                let items = self.pop_mark()?;
                self.push_list(items)
            }
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84)),
            b'd' | b'a' | b'e' | b's' | b'u' => self.fill(opcode),
            b'h' | b'j' | b'q' | b'r' | 0x94 => self.memo(opcode),
            other => Err(self.fault(format!(
                "opcode {other:#04x} builds more than plain data; a snapshot holds only dictionaries, lists, \
                 tuples, texts, numbers, truth values and None"
            ))),
        }
    }

    fn number(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b'K' => i128::from(self.take::<1>()?[0]),
            b'M' => i128::from(u16::from_le_bytes(self.take()?)),
            b'J' => i128::from(i32::from_le_bytes(self.take()?)),
            _ => {
                let length = self.byte()?;
                let end = self.at.saturating_add(length);
                let digits = self.bytes.get(self.at..end).ok_or_else(|| self.fault("cut short"))?;
                if length > 9 {
                    return Err(self.fault("a number of more than 64 bits"));
                }
                self.at = end;
                let negative = digits.last().is_some_and(|byte| byte & 0x80 != 0);
                let mut wide = [if negative { 0xff } else { 0 }; 16];
                wide[..length].copy_from_slice(digits);
                i128::from_le_bytes(wide)
            }
        };
        let item = match (i64::try_from(value), u64::try_from(value)) {
            (Ok(int), _) => Item::Int(int),
            (_, Ok(large)) => Item::Large(large),
            _ => return Err(self.fault("a number of more than 64 bits")),
        };
        self.push(item)
    }

    fn string(&mut self, opcode: u8) -> Result<(), PickleError> {
        let length = match opcode {
            0x8c => self.byte()? as u64,
            b'X' => u64::from(u32::from_le_bytes(self.take()?)),
            _ => u64::from_le_bytes(self.take()?),
        };
        let start = self.at;
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let text = end.and_then(|end| self.bytes.get(start..end));
        let text = text.ok_or_else(|| self.fault("a text that is cut short"))?;
        if std::str::from_utf8(text).is_err() {
            return Err(self.fault("a text that is not UTF-8"));
        }
        let item = Item::Text { at: start as u32, length: text.len() as u32 };
        self.at += text.len();
        self.push(item)
    }

    fn tuple(&mut self, length: usize) -> Result<(), PickleError> {
        let mut items = vec![Item::Null; length];
        for slot in items.iter_mut().rev() {
            *slot = self.pop()?;
        }
        self.push_list(items)
    }

    /// Opcodes that put items into a list or a dictionary.
    fn fill(&mut self, opcode: u8) -> Result<(), PickleError> {
        let items = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let pairs = matches!(opcode, b's' | b'u' | b'd');
        if pairs && !items.len().is_multiple_of(2) {
            return Err(self.fault("a key without a value"));
        }
        if opcode == b'd' {
            let node = self.add(items);
            return self.push(Item::Dict(node));
        }
        let floor = self.marks.last().copied().unwrap_or(0);
        let target = self.stack.last().filter(|_| self.stack.len() > floor).copied();
        match target {
            Some(Item::List(node)) if !pairs => self.nodes[node as usize].extend(items),
            Some(Item::Dict(node)) if pairs => self.nodes[node as usize].extend(items),
            _ => return Err(self.fault("nothing to put items into")),
        }
        Ok(())
    }

    fn memo(&mut self, opcode: u8) -> Result<(), PickleError> {
        let index = match opcode {
            b'h' | b'q' => self.byte()? as u32,
            0x94 => self.memo.len() as u32,
            _ => u32::from_le_bytes(self.take()?),
        };
        if matches!(opcode, b'h' | b'j') {
            let item = self.memo.get(index as usize).or_else(|| self.far_memo.get(&index)).copied();
            let item = item.ok_or_else(|| self.fault(format!("no memo {index}")))?;
            return self.push(item);
        }
        let item = self.pop()?;
        self.stack.push(item);
        let dense = self.memo.len();
        if let Some(slot) = self.memo.get_mut(index as usize) {
            *slot = item;
        } else if index as usize == dense {
            self.memo.push(item);
        } else {
            self.far_memo.insert(index, item);
        }
        Ok(())
    }
}
