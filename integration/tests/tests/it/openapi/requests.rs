//! Requests drawn from the document: valid ones, and the same broken in one place.

use std::collections::BTreeMap;

use domain::catalog::Catalog;
use jsonschema::Validator;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::Value;

use super::values::{change, draw};
use crate::schemas::validator;

/// The methods that an operation of another method refuses.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// How many changes of a body are drawn for each operation that takes one.
const BODY_CHANGES: usize = 40;

/// What the document asks of the answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expected {
    /// One of these statuses, as the operation documents them.
    Status(Vec<u16>),
    /// 200, with a result of 422.
    RefusedElement,
    /// 404 or 405, which no operation documents.
    NoOperation(u16),
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// What is broken.
    pub(crate) what: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) expected: Expected,
}

impl Ask {
    /// Path and query as they are sent.
    pub(crate) fn target(&self) -> String {
        let pairs: Vec<String> =
            self.query.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
        if pairs.is_empty() { self.path.clone() } else { format!("{}?{}", self.path, pairs.join("&")) }
    }

    /// The values of a header.
    pub(crate) fn header_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body; null if it is no JSON.
    pub(crate) fn body_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The same key with another intent, or with another text of the body where the key guards the request as a whole.
    pub(crate) fn with_other_content(&self) -> Self {
        let mut body = self.body_json();
        let other = match body["occurred_at_ms"].as_i64() {
            Some(millis) => {
                body["occurred_at_ms"] = (millis ^ 1).into();
                body.to_string().into_bytes()
            }
            None => [&self.body[..], b" "].concat(),
        };
        Self { body: other, ..self.with("the content for the key", &[422]) }
    }

    fn with(&self, what: impl Into<String>, expected: &[u16]) -> Self {
        Self { what: what.into(), expected: Expected::Status(expected.to_vec()), ..self.clone() }
    }

    fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn with_query(mut self, name: &str, value: &str) -> Self {
        self.query.retain(|(known, _)| known != name);
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }
}

fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// An operation of the document.
pub(crate) struct Operation<'a> {
    document: &'a Value,
    pub(crate) path: &'a str,
    method: &'a str,
    pub(crate) item: &'a Value,
    body: Option<Validator>,
}

/// What the document does not know: the tokens, and ids that exist.
pub(crate) struct Known {
    /// The token of each producer.
    pub(crate) producers: BTreeMap<String, String>,
    pub(crate) operator: String,
    /// Values of path parameters, by name.
    pub(crate) ids: BTreeMap<String, Vec<String>>,
    pub(crate) catalog: Catalog,
}

pub(crate) fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().expect("paths");
    let methods = |item: &'_ Value| item.as_object().expect("an item").keys().cloned().collect::<Vec<_>>();
    let mut all = Vec::new();
    for (path, item) in paths {
        for (method, item) in item.as_object().expect("an item") {
            let schema = item["requestBody"]["content"]["application/json"].get("schema");
            let body = schema.map(|schema| validator(document, schema));
            all.push(Operation { document, path, method, item, body });
        }
        assert!(!methods(item).is_empty(), "{path}");
    }
    all
}

impl Operation<'_> {
    /// The response for a status.
    pub(crate) fn response(&self, status: u16) -> &Value {
        &self.item["responses"][status.to_string()]
    }

    fn success(&self) -> u16 {
        let statuses = self.item["responses"].as_object().expect("responses").keys();
        let statuses: Vec<u16> = statuses.filter_map(|status| status.parse().ok()).collect();
        *statuses.iter().find(|status| **status < 300).expect("it may succeed")
    }

    fn parameters(&self, place: &str) -> impl Iterator<Item = &Value> {
        self.item["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(move |parameter| parameter["in"] == place)
    }

    fn takes(&self, role: &str) -> bool {
        let all = self.item["security"].as_array().expect("it says who may");
        all.iter()
            .any(|one| one["token"].as_array().is_some_and(|roles| roles.iter().any(|known| known == role)))
    }

    fn is_open(&self) -> bool {
        self.item["security"].as_array().is_some_and(Vec::is_empty)
    }

    fn schema(&self) -> &Value {
        &self.item["requestBody"]["content"]["application/json"]["schema"]
    }

    /// A valid request.
    pub(crate) fn valid(&self, known: &Known, random: &mut StdRng) -> Ask {
        let mut expected = vec![self.success()];
        let mut path = self.path.to_owned();
        for parameter in self.parameters("path") {
            let name = parameter["name"].as_str().expect("a name");
            let id = known.ids[name].choose(random).filter(|_| random.random_bool(0.7));
            let id = id.cloned().unwrap_or_else(|| {
                draw(self.document, &parameter["schema"], random).as_str().expect("text").to_owned()
            });
            path = path.replace(&format!("{{{name}}}"), &encoded(&id));
            expected.push(404);
        }
        let body = self.body.as_ref().map(|schema| {
            let body = draw(self.document, self.schema(), random);
            assert!(schema.is_valid(&body), "a valid body is drawn: {body}");
            body
        });
        let as_operator = self.takes("operator") && (!self.takes("producer") || random.random::<bool>());
        let producer = producer_of(&known.catalog, body.as_ref());
        let token = if as_operator { &known.operator } else { &known.producers[&producer] };
        let mut ask = Ask {
            what: "nothing".to_owned(),
            method: self.method.to_ascii_uppercase(),
            path,
            query: Vec::new(),
            headers: Vec::new(),
            body: body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default(),
            expected: Expected::Status(expected),
        };
        if !self.is_open() {
            ask = ask.with_header("Authorization", &format!("Bearer {token}"));
        }
        if self.body.is_some() {
            ask = ask.with_header("Content-Type", "application/json");
        }
        for parameter in self.parameters("query") {
            let name = parameter["name"].as_str().expect("a name");
            // A cursor is that of an answer, and a producer's token lists that producer's.
            let is_free = name != "cursor" && (name != "producer" || as_operator);
            if is_free && random.random_bool(0.15) {
                let value = draw(self.document, &parameter["schema"], random);
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                ask = ask.with_query(name, if text.is_empty() { "x" } else { &text });
            }
        }
        for parameter in self.parameters("header") {
            let is_key = parameter["name"] == "Idempotency-Key";
            if is_key {
                ask = ask.with_header("Idempotency-Key", &format!("k-{:x}", random.random::<u64>()));
            } else if random.random::<bool>() {
                let value = draw(self.document, &parameter["schema"], random);
                let text = value.as_str().filter(|text| !text.is_empty()).unwrap_or("r-1");
                ask = ask.with_header(parameter["name"].as_str().expect("a name"), text);
            }
        }
        ask
    }

    /// Requests that are broken in one place each.
    pub(crate) fn broken(&self, known: &Known, random: &mut StdRng) -> Vec<Ask> {
        let mut all = Vec::new();
        let valid = self.valid(known, random);
        self.break_target(&valid, &mut all);
        if !self.is_open() {
            self.break_token(&valid, known, &mut all);
        }
        for parameter in self.parameters("query") {
            self.break_parameter(&valid, parameter, &mut all);
        }
        all.push(valid.with("an unknown parameter", &[400]).with_query("colour", "red"));
        if self.parameters("header").any(|parameter| parameter["name"] == "Idempotency-Key") {
            self.break_key(&valid, &mut all);
        }
        for id in ["", " ", "a b", "\t", &"x".repeat(256)] {
            let Expected::Status(expected) = &valid.expected else { continue };
            let ask = valid.with("an id that is replaced", expected).without_header("X-Request-Id");
            all.push(ask.with_header("X-Request-Id", id));
        }
        if self.body.is_some() {
            self.break_media_type(&valid, &mut all);
            self.break_text(&valid, &mut all);
            for _ in 0..BODY_CHANGES {
                all.extend(self.break_body(known, random));
            }
        }
        all
    }

    fn break_target(&self, valid: &Ask, all: &mut Vec<Ask>) {
        for method in METHODS.into_iter().filter(|method| *method != valid.method) {
            let ask = Ask { what: "the method".to_owned(), method: method.to_owned(), ..valid.clone() };
            all.push(Ask { expected: Expected::NoOperation(405), ..ask });
        }
        let longer = format!("{}/x/x", valid.path);
        for path in
            [longer, format!("{}%20", self.path.split('{').next().unwrap_or_default().trim_end_matches('/'))]
        {
            let ask = Ask { what: "the path".to_owned(), path, ..valid.clone() };
            all.push(Ask { expected: Expected::NoOperation(404), ..ask });
        }
        for (id, expected) in [("%FF", 400), ("%00", 404), ("%2F..%2F", 404), ("%F0%9F%92%A9", 404)] {
            if let Some((start, _)) = self.path.split_once('{') {
                let ask = valid.with("the id", &[expected]);
                all.push(Ask { path: format!("{start}{id}"), ..ask });
            }
        }
        if valid.method == "GET" {
            let Expected::Status(expected) = &valid.expected else { return };
            all.push(Ask { method: "HEAD".to_owned(), ..valid.with("nothing but HEAD", expected) });
        }
    }

    fn break_token(&self, valid: &Ask, known: &Known, all: &mut Vec<Ask>) {
        let token = &valid.headers.iter().find(|(name, _)| name == "Authorization").expect("there is one").1;
        let bare = || valid.with("the token", &[401]).without_header("Authorization");
        all.push(bare());
        for wrong in [
            "Bearer unknown",
            "Bearer",
            "Bearer ",
            "Basic b3BzOm9wcw==",
            &token.replace("Bearer ", ""),
            &"x".repeat(600),
        ] {
            all.push(bare().with_header("Authorization", wrong));
        }
        all.push(valid.with("two tokens", &[401]).with_header("Authorization", token));
        let producer = known.producers.values().next().expect("a producer");
        for (role, token) in [("operator", &known.operator), ("producer", producer)] {
            if !self.takes(role) {
                let ask = valid.with("the role", &[403]).without_header("Authorization");
                all.push(ask.with_header("Authorization", &format!("Bearer {token}")));
            }
        }
    }

    fn break_parameter(&self, valid: &Ask, parameter: &Value, all: &mut Vec<Ask>) {
        let name = parameter["name"].as_str().expect("a name");
        let schema = validator(self.document, &parameter["schema"]);
        for wrong in
            ["", "\u{1}", "\u{0}", "yesterday", "0", "-1", "201", "1.5", "TRUE", "sms", &"x".repeat(1_025)]
        {
            // The value of a parameter is text; a number or a boolean is one that is written so.
            let number = wrong.parse::<i64>().map_or(Value::Null, Value::from);
            let takes = match parameter["schema"]["type"].as_str() {
                Some("string") => {
                    schema.is_valid(&Value::from(wrong)) && parameter["schema"].get("format").is_none()
                }
                _ => schema.is_valid(&number),
            };
            // Whether a text is a cursor is not for a schema to say.
            if !takes || name == "cursor" {
                all.push(valid.with(format!("{name}={wrong:?}"), &[400]).with_query(name, wrong));
            }
        }
        let value = parameter["schema"]["enum"][0].as_str().unwrap_or("1");
        let mut twice = valid.with(format!("{name} twice"), &[400]).with_query(name, value);
        twice.query.push((name.to_owned(), value.to_owned()));
        all.push(twice);
    }

    fn break_key(&self, valid: &Ask, all: &mut Vec<Ask>) {
        let without =
            |expected: &[u16]| valid.with("Idempotency-Key", expected).without_header("Idempotency-Key");
        let is_required = self.parameters("header").any(|parameter| parameter["required"] == true);
        if is_required {
            all.push(without(&[400]));
        }
        let is_dry = serde_json::from_slice::<Value>(&valid.body).is_ok_and(|body| body["dry_run"] == true);
        if is_dry {
            return;
        }
        for wrong in ["", "\"open", "\"\"", "\"a\";b=1", &"x".repeat(256)] {
            all.push(without(&[400]).with_header("Idempotency-Key", wrong));
        }
        let twice = without(&[400]).with_header("Idempotency-Key", "a");
        all.push(twice.with_header("Idempotency-Key", "a"));
        if is_required {
            all.push(without(&[422]).with_header("Idempotency-Key", "\" a\""));
        }
    }

    fn break_media_type(&self, valid: &Ask, all: &mut Vec<Ask>) {
        let without = || valid.with("the media type", &[415]).without_header("Content-Type");
        all.push(without());
        for wrong in ["text/plain", "application/json; charset=latin1", "application/jsonx", "*/*", ""] {
            all.push(without().with_header("Content-Type", wrong));
        }
        all.push(valid.with("two media types", &[415]).with_header("Content-Type", "application/json"));
        all.push(valid.with("the coding", &[415]).with_header("Content-Encoding", "gzip"));
    }

    fn break_text(&self, valid: &Ask, all: &mut Vec<Ask>) {
        let text = String::from_utf8(valid.body.clone()).expect("it was drawn as text");
        let mut wrong: Vec<Vec<u8>> = ["", "{", "[]", "null", "7", "\"x\"", "{\"a\":}", "nul"]
            .iter()
            .map(|text| text.as_bytes().to_vec())
            .collect();
        wrong.push(format!("{text}x").into_bytes());
        wrong.push(text.replacen('"', "\u{feff}\"", 1).into_bytes());
        wrong.push([text.as_bytes(), b"\xff"].concat());
        wrong.push(vec![b'['; 100_000]);
        for body in wrong {
            all.push(Ask { body, ..valid.with("the text of the body", &[400]) });
        }
        let first = text.split([',', '}']).next().unwrap_or_default().trim_start_matches('{').to_owned();
        // A member twice. The first one may be cut where it has a comma of its own.
        let twice = text.replacen(
            '{',
            &format!("{{{},", first.split(':').next().unwrap_or_default().to_owned() + ":null"),
            1,
        );
        all.push(Ask { body: twice.into_bytes(), ..valid.with("a member twice", &[400, 422]) });
        let most = usize::try_from(self.item["requestBody"]["x-max-bytes"].as_u64().expect("a limit"))
            .expect("a size");
        let padded = format!("{}{text}", " ".repeat(most + 1 - text.len()));
        all.push(Ask { body: padded.into_bytes(), ..valid.with("the size of the body", &[413]) });
    }

    /// A valid body that is changed in one place; nothing if it is still valid.
    fn break_body(&self, known: &Known, random: &mut StdRng) -> Option<Ask> {
        let schema = self.body.as_ref()?;
        let ask = self.valid(known, random);
        let mut body: Value = serde_json::from_slice(&ask.body).expect("it was drawn");
        let (place, how) = change(&mut body, random);
        if schema.is_valid(&body) {
            return None;
        }
        let what = format!("{how} at {place:?}");
        let elements = body["intents"].as_array();
        let is_element = place.starts_with("/intents/")
            && elements.is_some_and(|elements| elements.iter().all(Value::is_object));
        let ask = ask.with(what, if self.path == "/v1/intents" { &[400, 422] } else { &[400] });
        let ask = Ask { body: body.to_string().into_bytes(), ..ask };
        Some(if is_element { Ask { expected: Expected::RefusedElement, ..ask } } else { ask })
    }
}

/// Who may send the first intent of a body; any producer if there is none.
fn producer_of(catalog: &Catalog, body: Option<&Value>) -> String {
    let intent = body.map(|body| body.get("intents").map_or(body, |intents| &intents[0]));
    let known = intent.and_then(|intent| catalog.get(intent["notification_type"].as_str()?));
    known.or_else(|| catalog.types().next()).expect("the catalogue has types").producers()[0].clone()
}
