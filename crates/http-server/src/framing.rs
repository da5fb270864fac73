//! Detection of the beginnings and ends of heads on an HTTP/1.1 connection.
//!
//! The server library determines the framing of each request's body ([`Framing::begin`]). This module counts
//! the bytes of the body, so that it finds the head after it. Errors in a chunked body are left to the
//! library, which ends the connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The framing of a connection, shared by its stream and its service.
#[derive(Debug, Clone, Default)]
pub(crate) struct Framing(Arc<Mutex<FramingState>>);

/// The end of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// After this many bytes.
    Length(u64),
    /// After the last chunk and the trailers.
    Chunked,
}

/// The result of scanning received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Number of bytes that belong to the current head or body.
    pub(crate) handed_on: usize,
    /// True if the first byte of a head is among them.
    pub(crate) head_began: bool,
}

#[derive(Debug, Default)]
struct FramingState {
    part: RequestPart,
    /// True if the target of the last head contains a `#`.
    has_fragment: bool,
    /// Waker of the reader, which waits for the service to begin the request whose head was handed on.
    waker: Option<Waker>,
}

/// The part of a request to which the next byte belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestPart {
    /// First line of a head, after this many spaces; `None` before its first byte.
    FirstLine(Option<u32>),
    /// Header lines; `is_empty` if the current line is empty so far.
    Headers { is_empty: bool },
    /// No part, until the service has begun the request.
    HeadDone,
    /// A body with this many bytes left.
    Body(u64),
    /// Size of a chunk, and true if its digits have ended.
    ChunkSize(u64, bool),
    /// Data of a chunk, with the line break after it.
    ChunkData(u64),
    /// Lines after the last chunk; `is_empty` if the current line is empty so far.
    Trailers { is_empty: bool },
}

impl Default for RequestPart {
    fn default() -> Self {
        Self::FirstLine(None)
    }
}

impl Framing {
    /// Reports that the server library has read a head. Returns true if its target has a fragment.
    pub(crate) fn begin(&self, body: BodyFraming) -> bool {
        let mut state = self.state();
        state.part = match body {
            BodyFraming::Length(0) => RequestPart::default(),
            BodyFraming::Length(length) => RequestPart::Body(length),
            BodyFraming::Chunked => RequestPart::ChunkSize(0, false),
        };
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        state.has_fragment
    }

    /// Scans bytes that arrived. If none can be handed on now, `waker` is woken when that changes.
    pub(crate) fn scan(&self, bytes: &[u8], waker: &Waker) -> Scanned {
        let mut state = self.state();
        let (mut at, mut head_began) = (0, false);
        while at < bytes.len() && state.part != RequestPart::HeadDone {
            let (skipped, next) = state.part.after(&bytes[at..]);
            if state.part == RequestPart::FirstLine(None) && next != state.part {
                (head_began, state.has_fragment) = (true, false);
            }
            if bytes[at] == b'#' && state.part == RequestPart::FirstLine(Some(1)) {
                state.has_fragment = true;
            }
            let is_body = !matches!(state.part, RequestPart::FirstLine(_) | RequestPart::Headers { .. });
            state.part = next;
            at += skipped;
            if is_body && next == RequestPart::default() {
                break;
            }
        }
        if at == 0 {
            state.waker = Some(waker.clone());
        }
        Scanned { handed_on: at, head_began }
    }

    fn state(&self) -> MutexGuard<'_, FramingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestPart {
    /// The number of `bytes` that belong to this part, and the part after them. `bytes` must not be empty.
    fn after(self, bytes: &[u8]) -> (usize, Self) {
        let (first, is_end) = (bytes[0], bytes[0] == b'\n');
        let next = match self {
            // Empty lines before a head are ignored.
            Self::FirstLine(None) if matches!(first, b'\r' | b'\n') => self,
            Self::FirstLine(_) if is_end => Self::Headers { is_empty: true },
            Self::FirstLine(spaces) => Self::FirstLine(Some(spaces.unwrap_or(0) + u32::from(first == b' '))),
            Self::Headers { is_empty: true } if is_end => Self::HeadDone,
            Self::Headers { is_empty } => Self::Headers { is_empty: is_end || is_empty && first == b'\r' },
            Self::HeadDone => return (0, self),
            Self::Body(left) => {
                let length = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - length as u64;
                return (length, if left == 0 { Self::default() } else { Self::Body(left) });
            }
            Self::ChunkSize(0, _) if is_end => Self::Trailers { is_empty: true },
            // Includes the two bytes of the line break after the data.
            Self::ChunkSize(size, _) if is_end => Self::ChunkData(size.saturating_add(2)),
            Self::ChunkSize(size, is_over) => match char::from(first).to_digit(16).filter(|_| !is_over) {
                Some(digit) => Self::ChunkSize(size.saturating_mul(16).saturating_add(digit.into()), false),
                None => Self::ChunkSize(size, true),
            },
            Self::ChunkData(left) => {
                let length = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - length as u64;
                return (length, if left == 0 { Self::ChunkSize(0, false) } else { Self::ChunkData(left) });
            }
            Self::Trailers { is_empty: true } if is_end => Self::default(),
            Self::Trailers { is_empty } => Self::Trailers { is_empty: is_end || is_empty && first == b'\r' },
        };
        (1, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reads of `bytes` that are handed on, alternating with the bodies that the service receives.
    fn reads(bytes: &[u8], bodies: &[BodyFraming]) -> Vec<String> {
        let (framing, mut bodies) = (Framing::default(), bodies.iter());
        let (mut rest, mut reads) = (bytes, Vec::new());
        while !rest.is_empty() {
            let scanned = framing.scan(rest, Waker::noop());
            let (read, later) = rest.split_at(scanned.handed_on);
            if read.is_empty() {
                let Some(body) = bodies.next() else { return reads };
                framing.begin(*body);
                continue;
            }
            reads.push(String::from_utf8_lossy(read).into_owned());
            rest = later;
        }
        reads
    }

    #[test]
    fn no_byte_of_a_head_is_handed_on_with_what_came_before_it() {
        let (get, post) = ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\nHost: a\n\n");
        for (body, framing) in [
            ("12345", BodyFraming::Length(5)),
            ("3;x=\"1\"\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", BodyFraming::Chunked),
            ("0\r\nTrailer: x\r\n\r\n", BodyFraming::Chunked),
            ("", BodyFraming::Length(0)),
        ] {
            let bytes = format!("\r\n{get}{post}{body}\r\n{get}GET");
            let found = reads(bytes.as_bytes(), &[BodyFraming::Length(0), framing, BodyFraming::Length(0)]);
            let expected = [&format!("\r\n{get}"), post, body, &format!("\r\n{get}"), "GET"];
            assert_eq!(found, expected.into_iter().filter(|read| !read.is_empty()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_fragment_is_seen_in_the_target_alone() {
        for (head, expected) in [
            ("GET /a#b HTTP/1.1\r\n\r\n", true),
            ("GET http://h/?q#b HTTP/1.1\r\n\r\n", true),
            ("GET /a HTTP/1.1\r\nX: #\r\n\r\n", false),
            ("#GET /a HTTP/1.1\r\n\r\n", false),
        ] {
            for split in 0..head.len() {
                let framing = Framing::default();
                let (one, other) = head.as_bytes().split_at(split);
                let began = framing.scan(one, Waker::noop()).head_began;
                assert_ne!(framing.scan(other, Waker::noop()).head_began, began, "{head} at {split}");
                assert_eq!(framing.begin(BodyFraming::Length(0)), expected, "{head} at {split}");
            }
        }
    }
}
