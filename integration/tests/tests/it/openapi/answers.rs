//! Compares responses with the document: they contain nothing undocumented.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use harness::HttpResponse;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::schemas::{errors, validator};

/// The headers that belong to HTTP itself.
const OF_HTTP: [&str; 5] = ["connection", "content-length", "content-type", "date", "transfer-encoding"];

/// The document in the form used for comparing responses: undocumented members are errors.
pub(crate) struct Documented {
    document: Value,
    validators: RefCell<HashMap<String, Rc<Validator>>>,
}

impl Documented {
    pub(crate) fn new(document: &Value) -> Self {
        let mut document = document.clone();
        close(&mut document["components"]["schemas"]);
        close(&mut document["components"]["responses"]);
        Self { document, validators: RefCell::default() }
    }

    /// The undocumented parts of a response; `response` is its description in the document, or `null` without
    /// one.
    pub(crate) fn errors(&self, response: &Value, method: &str, answer: &HttpResponse) -> Vec<String> {
        let response = self.resolve(response);
        let mut found = self.header_errors(response, answer);
        if answer.status >= 500 && answer.status != 503 {
            found.push("a status that must never be".to_owned());
        }
        if response.is_null() {
            found.push("the status is not documented".to_owned());
            return found;
        }
        let media_type = answer.header("content-type").unwrap_or_default();
        let content = &response["content"][media_type];
        if content.is_null() {
            found.push(format!("the media type {media_type:?} is not documented"));
        } else if method == "HEAD" {
            found.extend((!answer.body.is_empty()).then(|| "an answer to HEAD has a body".to_owned()));
        } else {
            found.extend(errors(&self.validator(&content["schema"]), &answer.json()));
        }
        found
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
            Some(pointer) => self.document.pointer(pointer).expect("a reference leads somewhere"),
            None => value,
        }
    }

    fn header_errors(&self, response: &Value, answer: &HttpResponse) -> Vec<String> {
        let mut found = Vec::new();
        let none = serde_json::Map::new();
        let documented = response["headers"].as_object().unwrap_or(&none);
        for (name, _) in &answer.headers {
            let known = documented.keys().any(|known| known.eq_ignore_ascii_case(name));
            if !known && !OF_HTTP.contains(&name.as_str()) {
                found.push(format!("the header {name} is not documented"));
            }
        }
        for (name, header) in documented {
            let header = self.resolve(header);
            match answer.header(&name.to_ascii_lowercase()) {
                None if header["required"] == true => found.push(format!("the header {name} is missing")),
                None => {}
                Some(text) => {
                    let number = text.parse::<u64>().ok().filter(|_| header["schema"]["type"] == "integer");
                    let value = number.map_or(json!(text), Value::from);
                    found.extend(errors(&self.validator(&header["schema"]), &value));
                }
            }
        }
        found
    }

    fn validator(&self, schema: &Value) -> Rc<Validator> {
        let mut known = self.validators.borrow_mut();
        let compile = || {
            let mut schema = schema.clone();
            close(&mut schema);
            Rc::new(validator(&self.document, &schema))
        };
        Rc::clone(known.entry(schema.to_string()).or_insert_with(compile))
    }
}

/// Rejects members that a schema of an object does not have.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let is_open = members.contains_key("properties") && !members.contains_key("additionalProperties");
            if is_open && members.get("type").is_some_and(|kind| kind == "object") {
                members.insert("additionalProperties".to_owned(), false.into());
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

#[test]
fn an_undocumented_member_header_status_or_media_type_is_found() {
    let document = crate::schemas::read_json("docs/openapi.json");
    let documented = Documented::new(&document);
    let response = &document["paths"]["/v1/notifications"]["get"]["responses"]["200"];
    let answer = |headers: &[(&str, &str)], body: Value| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        HttpResponse { status: 200, headers, body: body.to_string() }
    };
    let json = ("content-type", "application/json");
    let id = ("x-request-id", "r-1");
    let page = json!({"notifications": [], "next_cursor": null});
    let errors = |answer: HttpResponse| documented.errors(response, "GET", &answer);
    assert_eq!(errors(answer(&[json, id], page.clone())), [""; 0]);
    let mut further = page.clone();
    further["total"] = 7.into();
    for wrong in [
        answer(&[json, id], further),
        answer(&[json, id], json!({"notifications": []})),
        answer(&[json], page.clone()),
        answer(&[json, id, ("retry-after", "1")], page.clone()),
        answer(&[json, id, ("x-powered-by", "axum")], page.clone()),
        answer(&[("content-type", "text/plain"), id], page.clone()),
    ] {
        assert!(!errors(wrong.clone()).is_empty(), "{wrong:?}");
    }
    let unknown = answer(&[json, id], page);
    assert!(!documented.errors(&Value::Null, "GET", &unknown).is_empty());
}
