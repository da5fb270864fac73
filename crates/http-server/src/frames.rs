//! Detection of fragments in the targets of HTTP/2 requests.
//!
//! The server library silently drops a fragment from `:path`. So this module parses the frames of a
//! connection in parallel, as far as needed to find a `#` in the path: it examines each literal of the header
//! blocks (RFC 7541). A connection with such a target is closed, so no entry of the dynamic table ever
//! contains a fragment, and the table need not be stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The length of a client's connection preface.
const PREFACE_BYTES: usize = 24;
const FRAME_HEAD_BYTES: usize = 9;
/// The longest header block that is examined, in bytes: the server library refuses a longer one.
const MAX_BLOCK_BYTES: usize = 64 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// A flag: a target of the connection has a fragment. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fragments(Arc<AtomicBool>);

impl Fragments {
    pub(crate) fn were_seen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Parses the frames of a connection as their bytes arrive.
#[derive(Debug)]
pub(crate) struct Frames {
    seen: Fragments,
    /// Remaining bytes of the preface or of a frame that is not examined.
    skipped: usize,
    /// The head of the next frame, as far as it has arrived.
    head: Vec<u8>,
    /// Remaining bytes of a frame with a part of a header block.
    in_block: usize,
    flags: u8,
    is_first: bool,
    block: Vec<u8>,
}

impl Frames {
    pub(crate) fn new(seen: Fragments) -> Self {
        Self {
            seen,
            skipped: PREFACE_BYTES,
            head: Vec::with_capacity(FRAME_HEAD_BYTES),
            in_block: 0,
            flags: 0,
            is_first: false,
            block: Vec::new(),
        }
    }

    /// Processes bytes that arrived.
    pub(crate) fn scan(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = match (self.skipped, self.in_block) {
                (0, 0) => FRAME_HEAD_BYTES - self.head.len(),
                (0, left) => left,
                (left, _) => left,
            };
            let (piece, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.skipped > 0 {
                self.skipped -= piece.len();
            } else if self.in_block > 0 {
                self.in_block -= piece.len();
                if self.block.len() <= MAX_BLOCK_BYTES {
                    self.block.extend_from_slice(piece);
                }
                if self.in_block == 0 {
                    self.end_piece();
                }
            } else {
                self.head.extend_from_slice(piece);
                if self.head.len() == FRAME_HEAD_BYTES {
                    self.begin_frame();
                }
            }
        }
    }

    fn begin_frame(&mut self) {
        let length = self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (kind, flags) = (self.head[3], self.head[4]);
        self.head.clear();
        match kind {
            HEADERS | CONTINUATION => {
                (self.in_block, self.flags, self.is_first) = (length, flags, kind == HEADERS);
                if self.is_first {
                    self.block.clear();
                }
                if length == 0 {
                    self.end_piece();
                }
            }
            _ => self.skipped = length,
        }
    }

    /// Processes the end of a frame with a part of a header block.
    fn end_piece(&mut self) {
        if self.is_first {
            let padding = if self.flags & PADDED != 0 { self.block.first().copied().unwrap_or(0) } else { 0 };
            let before =
                usize::from(self.flags & PADDED != 0) + if self.flags & PRIORITY != 0 { 5 } else { 0 };
            self.block.truncate(self.block.len().saturating_sub(usize::from(padding)));
            self.block.drain(..before.min(self.block.len()));
        }
        if self.flags & END_HEADERS != 0 {
            if has_fragment(&self.block) == Some(true) {
                self.seen.0.store(true, Ordering::Release);
            }
            self.block = Vec::new();
        }
    }
}

/// True if a `:path` of this header block contains a `#`; `None` if the block cannot be parsed.
fn has_fragment(mut block: &[u8]) -> Option<bool> {
    while let Some(first) = block.first() {
        let literal = match first {
            0x80.. => {
                integer(&mut block, 7)?;
                continue;
            }
            0x40.. => integer(&mut block, 6)?,
            0x20.. => {
                integer(&mut block, 5)?;
                continue;
            }
            _ => integer(&mut block, 4)?,
        };
        let is_path = match literal {
            0 => string(&mut block)? == b":path",
            4 | 5 => true,
            // The name is in the dynamic table, and may be `:path`.
            index => index > 61 && string(&mut &*block)?.first() == Some(&b'/'),
        };
        if string(&mut block)?.contains(&b'#') && is_path {
            return Some(true);
        }
    }
    Some(false)
}

/// Parses an integer with a prefix of `bits` bits.
fn integer(block: &mut &[u8], bits: u32) -> Option<usize> {
    let (first, mut rest) = block.split_first()?;
    let most = (1 << bits) - 1;
    let mut value = usize::from(first & most);
    if value == usize::from(most) {
        let mut shift = 0;
        loop {
            let (next, after) = rest.split_first()?;
            rest = after;
            value = value.checked_add(usize::from(next & 0x7f).checked_shl(shift).filter(|_| shift < 28)?)?;
            shift += 7;
            if next & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Some(value)
}

/// Parses a string. A Huffman-coded string is cut at the first character that cannot occur in a target.
fn string(block: &mut &[u8]) -> Option<Vec<u8>> {
    let has_codes = block.first()? & 0x80 != 0;
    let length = integer(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length)?;
    *block = rest;
    Some(if has_codes { decoded(bytes) } else { bytes.to_vec() })
}

/// The characters with codes of up to 15 bits, by the length of their codes. Codes of one length are
/// consecutive, and continue those of the previous length.
const CODES: [(u32, &[u8]); 10] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

fn decoded(bytes: &[u8]) -> Vec<u8> {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1)));
    let mut text = Vec::with_capacity(bytes.len() * 8 / 5);
    loop {
        let (mut code, mut read, mut first, mut before) = (0, 0, 0, 0);
        let found = CODES.iter().find_map(|(length, characters)| {
            while read < *length {
                code = code << 1 | bits.next()?;
                read += 1;
            }
            first <<= length - before;
            before = *length;
            let found = characters.get(usize::try_from(code - first).ok()?).copied();
            first += u32::try_from(characters.len()).ok()?;
            found
        });
        match found {
            Some(character) => text.push(character),
            // The end, or a character with a longer code.
            None => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rfc_7541() {
        // Examples C.4 and C.6 of the RFC.
        for (hex, text) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ] {
            assert_eq!(decoded(&hex::decode(hex).expect("hex")), text.as_bytes());
        }
    }

    #[test]
    fn a_fragment_is_found_in_a_path_alone() {
        let literal =
            |name: u8, value: &[u8]| [&[name, u8::try_from(value.len()).expect("short")], value].concat();
        let named = |name: &[u8], value: &[u8]| {
            [&[0, u8::try_from(name.len()).expect("short")], name, &literal(0, value)[1..]].concat()
        };
        for (block, expected) in [
            (literal(0x44, b"/a#b"), Some(true)),
            (literal(0x04, b"/a#b"), Some(true)),
            (literal(0x45, b"/a"), Some(false)),
            (named(b":path", b"/#"), Some(true)),
            (named(b"referer", b"/#"), Some(false)),
            // A name in the dynamic table.
            (literal(0x7e, b"/#"), Some(true)),
            (literal(0x7e, b"x#"), Some(false)),
            ([vec![0x82, 0x86, 0x3f, 0xe1, 0x1f], literal(0x44, b"/#")].concat(), Some(true)),
            (vec![0x44, 9, b'/'], None),
        ] {
            assert_eq!(has_fragment(&block), expected, "{block:x?}");
        }
    }

    #[test]
    fn a_block_is_read_over_frames_however_they_arrive() {
        let frame = |kind: u8, flags: u8, payload: &[u8]| {
            let length = u8::try_from(payload.len()).expect("short");
            [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
        };
        let sent = [
            vec![0; PREFACE_BYTES],
            frame(4, 0, &[0; 6]),
            frame(HEADERS, PADDED | PRIORITY, &[2, 0, 0, 0, 0, 0, 0x44, 4, b'/', 0, 0]),
            frame(CONTINUATION, 0, &[]),
            frame(CONTINUATION, END_HEADERS, b"a#b"),
            frame(0, 1, b"body"),
        ]
        .concat();
        for size in 1..=sent.len() {
            let seen = Fragments::default();
            let mut frames = Frames::new(seen.clone());
            sent.chunks(size).for_each(|bytes| frames.scan(bytes));
            assert!(seen.were_seen(), "in pieces of {size} bytes");
        }
    }
}
