//! Valid requests broken in one place, and the responses that the document requires.

use domain::receipt::MAX_REPORTS;
use rand::rngs::StdRng;
use serde_json::Value;

use super::requests::{Ask, Expected, Known, Operation};
use super::values::change;
use crate::schemas::validator;

/// The methods that an operation of another method rejects.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// The number of body changes that are drawn for each operation with a body.
const BODY_CHANGES: usize = 40;

impl Operation<'_> {
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
        let (unknown, with_nul) = if self.has_unknown_keys() { (200, 400) } else { (404, 404) };
        for (id, expected) in
            [("%FF", 400), ("%00", with_nul), ("%2F..%2F", unknown), ("%F0%9F%92%A9", unknown)]
        {
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
        // Too many unknown tokens from one address are rejected for a while.
        let unknown = || valid.with("the token", &[401, 429]).without_header("Authorization");
        for wrong in [
            "Bearer unknown",
            "Bearer",
            "Bearer ",
            "Basic b3BzOm9wcw==",
            &token.replace("Bearer ", ""),
            &"x".repeat(600),
        ] {
            all.push(unknown().with_header("Authorization", wrong));
        }
        all.push(valid.with("two tokens", &[401, 429]).with_header("Authorization", token));
        let producer = known.producers.values().next().expect("a producer");
        let tokens = [("operator", &known.operator), ("viewer", &known.viewer), ("producer", producer)];
        for (role, token) in tokens {
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
            // The value of a parameter is text; a number or a boolean is one in its text form.
            let number = wrong.parse::<i64>().map_or(Value::Null, Value::from);
            let takes = match parameter["schema"]["type"].as_str() {
                Some("string") => {
                    schema.is_valid(&Value::from(wrong)) && parameter["schema"].get("format").is_none()
                }
                _ => schema.is_valid(&number),
            };
            // A schema cannot define which texts are cursors.
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
        wrong.push(format!("\u{feff}{text}").into_bytes());
        wrong.push([text.as_bytes(), b"\xff"].concat());
        wrong.push(vec![b'['; 100_000]);
        for body in wrong {
            all.push(Ask { body, ..valid.with("the text of the body", &[400]) });
        }
        let first = text.split([',', '}']).next().unwrap_or_default().trim_start_matches('{').to_owned();
        // A repeated member. The first one may be cut if it contains a comma.
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

    /// A valid body that is changed in one place; `None` if it is still valid.
    fn break_body(&self, known: &Known, random: &mut StdRng) -> Option<Ask> {
        let schema = self.body.as_ref()?;
        let ask = self.valid(known, random);
        let mut body: Value = serde_json::from_slice(&ask.body).expect("it was drawn");
        let (place, how) = change(&mut body, random);
        if schema.is_valid(&body) {
            return None;
        }
        let what = format!("{how} at {place:?}");
        let all_objects = |elements: &Value| {
            elements.as_array().is_some_and(|elements| elements.iter().all(Value::is_object))
        };
        let is_element = (place.starts_with("/intents/") && all_objects(&body["intents"]))
            || (place.starts_with("/receipts")
                && body["receipts"].as_array().is_some_and(|all| (1..=MAX_REPORTS).contains(&all.len())));
        let ask = ask.with(what, if self.path == "/v1/intents" { &[400, 422] } else { &[400] });
        let ask = Ask { body: body.to_string().into_bytes(), ..ask };
        Some(if is_element { Ask { expected: Expected::RefusedElement, ..ask } } else { ask })
    }
}
