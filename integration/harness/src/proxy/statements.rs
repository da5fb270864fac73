//! The statements that a client of PostgreSQL executes, read from its messages.

use std::collections::HashMap;
use std::sync::Arc;

/// The protocol version 3.0, in the first message of a session.
const PROTOCOL_3: [u8; 4] = [0, 3, 0, 0];

/// The statements of one connection. Connections of other protocols have none.
#[derive(Default)]
pub(super) struct Statements {
    session: Session,
    /// The part of a message that has arrived.
    unread: Vec<u8>,
    /// The texts by the names under which they were prepared.
    prepared: HashMap<Vec<u8>, Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Session {
    /// Before the first message, which has no type.
    #[default]
    Opening,
    Open,
    /// Not a session of PostgreSQL.
    Other,
}

impl Statements {
    /// Reads the next data of the client. Returns the text of each statement that it executes, with the start
    /// of its message in `data`: 0 if the message began in an earlier piece.
    pub(super) fn executed(&mut self, data: &[u8]) -> Vec<(usize, Arc<str>)> {
        let mut unread = std::mem::take(&mut self.unread);
        let earlier = unread.len();
        unread.extend_from_slice(data);
        let (mut executed, mut rest) = (Vec::new(), &unread[..]);
        if self.session == Session::Opening
            && let Some((length, version)) = rest.split_first_chunk()
            && let Some(version) = version.first_chunk()
        {
            if *version != PROTOCOL_3 {
                self.session = Session::Other;
            } else if let Some((_, next)) = rest.split_at_checked(u32::from_be_bytes(*length) as usize) {
                (self.session, rest) = (Session::Open, next);
            }
        }
        while let (Session::Open, Some((kind, content, next))) = (self.session, message(rest)) {
            let start = unread.len() - rest.len();
            let text = self.text_of(kind, content);
            executed.extend(text.map(|text| (start.saturating_sub(earlier), text)));
            rest = next;
        }
        if self.session != Session::Other {
            let read = unread.len() - rest.len();
            unread.drain(..read);
            self.unread = unread;
        }
        executed
    }

    /// The text of the statement that a message executes. Remembers the text of one that it prepares.
    fn text_of(&mut self, kind: u8, content: &[u8]) -> Option<Arc<str>> {
        let mut strings = content.split(|byte| *byte == 0);
        let mut string = || strings.next().unwrap_or_default();
        // Without the line breaks of the source.
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            Arc::from(text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        match kind {
            // Parse: the name, the text.
            b'P' => {
                let (name, statement) = (string().to_vec(), text(string()));
                self.prepared.insert(name, statement);
                None
            }
            // Bind: the portal, the name.
            b'B' => {
                let (_portal, name) = (string(), string());
                self.prepared.get(name).cloned()
            }
            // A simple query.
            b'Q' => Some(text(string())),
            _ => None,
        }
    }
}

/// The type and the content of the first message, and what follows. `None` if it is not complete.
fn message(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = data.split_first()?;
    let (length, _) = rest.split_first_chunk()?;
    // The length counts itself.
    let (content, next) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((*kind, content.get(length.len()..)?, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len() + 4).expect("it is short").to_be_bytes();
        [&[kind], &length[..], content].concat()
    }

    #[test]
    fn a_statement_is_known_by_its_text_in_whatever_pieces_its_messages_arrive() {
        let opening = [&[0, 0, 0, 14][..], &PROTOCOL_3, b"user\0\0"].concat();
        let prepare = message_of(b'P', b"s1\0SELECT 1\0\0\0");
        let bind = message_of(b'B', b"\0s1\0\0\0\0\0");
        let query = message_of(b'Q', b"COMMIT\0");
        let all = [&opening[..], &prepare, &bind, &query].concat();
        let at_bind = opening.len() + prepare.len();

        let whole = Statements::default().executed(&all);
        assert_eq!(whole, [(at_bind, "SELECT 1".into()), (at_bind + bind.len(), "COMMIT".into())]);
        for size in 1..all.len() {
            let mut statements = Statements::default();
            let pieces: Vec<_> = all.chunks(size).flat_map(|piece| statements.executed(piece)).collect();
            assert_eq!(pieces.len(), 2, "pieces of {size}");
        }
        assert_eq!(Statements::default().executed(b"*1\r\n$4\r\nPING\r\n"), []);
    }
}
