//! Valid requests, drawn from the document.

use std::collections::BTreeMap;

use domain::catalog::Catalog;
use jsonschema::Validator;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::Value;

use super::values::draw;
use crate::schemas::validator;

/// The maximum number of draws for a valid body.
const MAX_DRAWS: usize = 1_000;

/// The response that the document requires.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expected {
    /// One of these statuses, as documented by the operation.
    Status(Vec<u16>),
    /// 200, with a result of 422 or an invalid one.
    RefusedElement,
    /// 404 or 405, which no operation documents.
    NoOperation(u16),
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The broken part.
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

    /// The body; null if it is not JSON.
    pub(crate) fn body_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The same key with another intent, or with another text of the body if the key guards the whole
    /// request.
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

    pub(crate) fn with(&self, what: impl Into<String>, expected: &[u16]) -> Self {
        Self { what: what.into(), expected: Expected::Status(expected.to_vec()), ..self.clone() }
    }

    pub(crate) fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn with_query(mut self, name: &str, value: &str) -> Self {
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
    pub(crate) document: &'a Value,
    pub(crate) path: &'a str,
    method: &'a str,
    pub(crate) item: &'a Value,
    pub(crate) body: Option<Validator>,
}

/// Values that the document does not contain: the tokens, and ids that exist.
pub(crate) struct Known {
    /// The token of each producer.
    pub(crate) producers: BTreeMap<String, String>,
    pub(crate) operator: String,
    pub(crate) viewer: String,
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

    pub(crate) fn parameters(&self, place: &str) -> impl Iterator<Item = &Value> {
        self.item["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(move |parameter| parameter["in"] == place)
    }

    pub(crate) fn takes(&self, role: &str) -> bool {
        let all = self.item["security"].as_array().expect("it says who may");
        all.iter()
            .any(|one| one["token"].as_array().is_some_and(|roles| roles.iter().any(|known| known == role)))
    }

    /// True if it reports an unknown idempotency key as such, where an unknown id is not found.
    pub(crate) fn has_unknown_keys(&self) -> bool {
        self.path.ends_with("{idempotency_key}")
    }

    pub(crate) fn is_open(&self) -> bool {
        self.item["security"].as_array().is_some_and(Vec::is_empty)
    }

    /// The request for the next page: if it has a body, the cursor is in the body.
    pub(crate) fn with_cursor(&self, ask: &Ask, cursor: &str) -> Ask {
        if self.body.is_none() {
            return ask.clone().with_query("cursor", cursor);
        }
        let mut body = ask.body_json();
        body["cursor"] = cursor.into();
        Ask { body: body.to_string().into_bytes(), ..ask.clone() }
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
            expected.extend((!self.has_unknown_keys()).then_some(404));
        }
        let body = self.body.as_ref().map(|schema| {
            // Relations between members are not drawn but checked.
            for _ in 0..MAX_DRAWS {
                let mut body = draw(self.document, self.schema(), random);
                // A cursor comes from a response.
                body.as_object_mut().map(|members| members.remove("cursor"));
                if schema.is_valid(&body) {
                    return body;
                }
            }
            panic!("no valid body of {} was drawn", self.path)
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
            // A cursor comes from a response, and a producer's token lists only that producer's items.
            let is_free = name != "cursor" && (name != "producer" || as_operator);
            // An operator's token has no key of its own.
            let is_needed = parameter["required"] == true || name == "producer" && self.has_unknown_keys();
            // An id is that of an entry of a stream, or a key of a producer.
            let is_excluded = name == "stream" && ask.query.iter().any(|(other, _)| other == "producer");
            if is_free && !is_excluded && (is_needed || random.random_bool(0.15)) {
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
}

/// The producer that may send the first intent of a body; any producer without a body.
fn producer_of(catalog: &Catalog, body: Option<&Value>) -> String {
    let intent = body.map(|body| body.get("intents").map_or(body, |intents| &intents[0]));
    let known = intent.and_then(|intent| catalog.get(intent["notification_type"].as_str()?));
    known.or_else(|| catalog.types().next()).expect("the catalogue has types").producers()[0].clone()
}
