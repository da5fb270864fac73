//! The part of the WebDriver protocol that the tests need: JSON over HTTP, one request at a time.
//!
//! Not a library: the existing ones bring an HTTP client of their own, and one that was tried adds an
//! operator to `String` that keeps `String + &String` from compiling wherever the harness is used.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit of a command, including the loading of a page.
const ANSWER_BOUND: Duration = Duration::from_secs(60);

/// The member that names an element, by the standard.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The reason why a command failed, in the driver's words.
pub(super) type DriverFailure = String;

/// A session of ChromeDriver.
#[derive(Debug)]
pub(super) struct Driver {
    addr: String,
    session: String,
    /// The capabilities of the session, as the driver reports them.
    pub(super) capabilities: Value,
}

impl Driver {
    /// Begins a session with these options of Chrome.
    pub(super) async fn connect(addr: &str, options: &Value) -> Result<Self, DriverFailure> {
        let wanted = json!({"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "WARNING"}});
        let body = json!({"capabilities": {"alwaysMatch": wanted}});
        let session = ask(addr, "POST", "/session", &body).await?;
        let id = session["sessionId"].as_str().ok_or("the driver gives no session")?.to_owned();
        Ok(Self { addr: addr.to_owned(), session: id, capabilities: session["capabilities"].clone() })
    }

    /// Sends a command with parameters.
    pub(super) async fn post(&self, command: &str, parameters: &Value) -> Result<Value, DriverFailure> {
        ask(&self.addr, "POST", &format!("/session/{}/{command}", self.session), parameters).await
    }

    /// Sends a GET request.
    pub(super) async fn get(&self, what: &str) -> Result<Value, DriverFailure> {
        ask(&self.addr, "GET", &format!("/session/{}/{what}", self.session), &Value::Null).await
    }

    /// Sends a DELETE request; it deletes the session itself if `what` is empty.
    pub(super) async fn delete(&self, what: &str) -> Result<Value, DriverFailure> {
        let path = format!("/session/{}/{what}", self.session);
        ask(&self.addr, "DELETE", path.trim_end_matches('/'), &Value::Null).await
    }

    /// The elements that a CSS selector selects.
    pub(super) async fn elements(&self, css: &str) -> Result<Vec<String>, DriverFailure> {
        let found = self.post("elements", &json!({"using": "css selector", "value": css})).await?;
        let ids = found.as_array().into_iter().flatten().filter_map(|element| element[ELEMENT].as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// Runs a command of the developer tools.
    pub(super) async fn devtools(&self, method: &str, parameters: &Value) -> Result<Value, DriverFailure> {
        self.post("goog/cdp/execute", &json!({"cmd": method, "params": parameters})).await
    }

    /// Presses keys one after the other.
    pub(super) async fn press(&self, keys: &str) -> Result<Value, DriverFailure> {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.post("actions", &json!({"actions": [keyboard]})).await
    }
}

/// Sends a request. Returns the member `value` of the response.
async fn ask(addr: &str, method: &str, path: &str, body: &Value) -> Result<Value, DriverFailure> {
    let body = if method == "POST" { body.to_string() } else { String::new() };
    let exchange = timeout(ANSWER_BOUND, exchange(addr, method, path, &body)).await;
    let (is_done, body) =
        exchange.map_err(|_| format!("no answer to {path}"))?.map_err(|error| error.to_string())?;
    let mut members: Map<String, Value> = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let value = members.remove("value").unwrap_or_default();
    if is_done { Ok(value) } else { Err(format!("{}: {}", value["error"], value["message"])) }
}

/// Sends a request. Returns true if the status is 200, and the body. The driver keeps connections open, so
/// the length determines the end of the body.
async fn exchange(addr: &str, method: &str, path: &str, body: &str) -> std::io::Result<(bool, Vec<u8>)> {
    let mut stream = BufReader::new(TcpStream::connect(addr).await?);
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    let (mut is_done, mut length, mut line) = (false, 0, String::new());
    while stream.read_line(&mut line).await? > 2 {
        let lower = line.to_ascii_lowercase();
        is_done |= lower.starts_with("http/1.1 200");
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        line.clear();
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok((is_done, answer))
}
