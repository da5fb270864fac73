//! A client of the HTTP API: one kept connection, and requests that are encoded in advance.
//!
//! It shares the cores with the service, so it does the minimum of a client: it writes the bytes of a request
//! and reads the status, the headers that it needs and the body.

use anyhow::{Context, bail, ensure};
use domain::intent::{IntentDraft, Recipients};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::load;

/// The longest response that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Routes of an intent.
pub(crate) const ROUTES: u32 = 2;

/// A connection that is kept open between requests.
pub(crate) struct ClientConnection {
    stream: TcpStream,
    /// The bytes of the latest response.
    received: Vec<u8>,
}

/// A response.
pub(crate) struct ClientResponse<'a> {
    pub(crate) status: u16,
    /// True if the response was stored for an earlier request.
    pub(crate) is_replayed: bool,
    pub(crate) body: &'a [u8],
}

impl ClientResponse<'_> {
    /// The body.
    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(self.body).context("the API answered with something else than JSON")
    }

    /// Checks the status.
    pub(crate) fn expect(&self, status: u16) -> anyhow::Result<()> {
        let body = || String::from_utf8_lossy(self.body);
        ensure!(self.status == status, "the API answered {} instead of {status}: {}", self.status, body());
        Ok(())
    }
}

impl ClientConnection {
    pub(crate) async fn open(addr: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(addr).await.context("could not connect to the API")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends a request and reads its response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<ClientResponse<'_>> {
        self.stream.write_all(request).await?;
        self.received.clear();
        let head_length = self.read_head().await?;
        let head = std::str::from_utf8(&self.received[..head_length]).context("a head that is no text")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.context("an answer without a status")?;
        let length = match header(head, "content-length") {
            // Status 204 has no body.
            None if status == 204 => 0,
            length => length.context("an answer without a length")?.parse::<usize>()?,
        };
        let whole = head_length + HEAD_END.len() + length;
        let is_replayed = header(head, "idempotency-replayed") == Some("true");
        while self.received.len() < whole {
            self.read().await?;
        }
        ensure!(self.received.len() == whole, "more than one answer to one request");
        Ok(ClientResponse { status, is_replayed, body: &self.received[head_length + HEAD_END.len()..] })
    }

    /// Reads until the end of the head, and returns its length.
    async fn read_head(&mut self) -> anyhow::Result<usize> {
        let mut searched = 0;
        loop {
            self.read().await?;
            let end = self.received[searched..].windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END);
            if let Some(end) = end {
                return Ok(searched + end);
            }
            searched = self.received.len().saturating_sub(HEAD_END.len() - 1);
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        ensure!(self.received.len() < MAX_ANSWER_BYTES, "an answer of more than {MAX_ANSWER_BYTES} bytes");
        match self.stream.read_buf(&mut self.received).await.context("could not read an answer")? {
            0 => bail!("the API closed the connection"),
            _ => Ok(()),
        }
    }
}

/// The value of a header by its name in lower case, as the service writes it.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// A GET request with a token.
pub(crate) fn get(path: &str, token: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n").into_bytes()
}

/// A request that sends intent number `n`. Its body is padded to `body_bytes`, unless it is longer.
pub(crate) fn single(token: &str, n: u32, body_bytes: usize) -> Vec<u8> {
    let mut draft = load::draft_of(n, ROUTES);
    let key = std::mem::take(&mut draft.idempotency_key);
    let body = intent(draft, body_bytes).to_string();
    post("/v1/intents", token, &format!("idempotency-key: {key}\r\n"), &body)
}

/// A request that sends the intents with these numbers.
pub(crate) fn batch(token: &str, numbers: std::ops::Range<u32>) -> Vec<u8> {
    let element = |n| {
        let mut draft = load::draft_of(n, ROUTES);
        let key = std::mem::take(&mut draft.idempotency_key);
        let mut element = intent(draft, 0);
        element["idempotency_key"] = key.into();
        element
    };
    let body = json!({ "intents": numbers.map(element).collect::<Vec<_>>() });
    post("/v1/intents:batch", token, "", &body.to_string())
}

/// A request that posts a body, with a token. `headers` are whole lines.
pub(crate) fn post(path: &str, token: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// An intent as a body, without its key; the token determines the producer.
fn intent(draft: IntentDraft, body_bytes: usize) -> Value {
    let mut payload: Map<String, Value> = serde_json::from_str(&draft.payload_json).unwrap_or_default();
    let recipients = match draft.recipients {
        Recipients::Users(users) => users,
        Recipients::Administrators => Vec::new(),
    };
    let mut body = json!({
        "notification_type": draft.notification_type,
        "audience_kind": "user",
        "recipient_user_ids": recipients,
        "occurred_at_ms": draft.occurred_at_ms.parse::<i64>().unwrap_or_default(),
        "payload": payload.clone(),
        "request_id": draft.request_id,
    });
    let missing = body_bytes.saturating_sub(body.to_string().len());
    if missing > 0 {
        let name = payload.get("game_name").and_then(Value::as_str).unwrap_or_default();
        let longer = format!("{name}{}", "x".repeat(missing));
        payload.insert("game_name".to_owned(), longer.into());
        body["payload"] = payload.into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of a request.
    fn body(request: &[u8]) -> &str {
        let text = std::str::from_utf8(request).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert_eq!(header(head, "content-length"), Some(body.len().to_string().as_str()));
        body
    }

    #[test]
    fn a_body_is_padded_to_its_length_and_never_cut() {
        assert_eq!(body(&single("t", 7, 1_024)).len(), 1_024);
        let whole = body(&single("t", 7, 0)).len();
        assert_eq!(body(&single("t", 7, 10)).len(), whole);
    }

    #[test]
    fn a_batch_has_each_of_its_intents_with_the_key_of_a_single_one() {
        let batch = batch("t", 3..5);
        let parsed: Value = serde_json::from_str(body(&batch)).expect("JSON");
        let keys: Vec<&str> = parsed["intents"]
            .as_array()
            .expect("intents")
            .iter()
            .filter_map(|element| element["idempotency_key"].as_str())
            .collect();
        assert_eq!(keys, [3, 4].map(|n| load::draft_of(n, ROUTES).idempotency_key));
        let single = single("t", 3, 0);
        let head = String::from_utf8_lossy(&single);
        assert!(head.contains(&format!("idempotency-key: {}\r\n", keys[0])), "{head}");
    }
}
