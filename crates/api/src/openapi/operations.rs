//! The parts of an operation of the document, and the parts that all operations share.

use idempotency::MAX_KEY_BYTES;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::problems::{
    BAD_REQUEST, BODY_TOO_LARGE, FORBIDDEN, IN_PROGRESS, REQUEST_CONFLICT, REQUEST_TIMEOUT,
    TOO_MANY_REQUESTS, UNAUTHORIZED, UNAVAILABLE, UNSUPPORTED_MEDIA_TYPE,
};
use super::schemas::{Schemas, header_refs};
use crate::params::Param;
use crate::ports::ApiSettings;

/// The tokens that an operation accepts, like the rules of the router.
#[derive(Clone, Copy)]
pub(super) enum Callers {
    Anyone,
    Producers,
    Operators,
    /// Viewers and operators.
    Viewers,
    /// Producers, viewers and operators.
    Readers,
    /// Consumers and operators.
    Reporters,
}

/// The use of the header `Idempotency-Key` in an operation.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum KeyHeader {
    Absent,
    Required,
    /// Optional; the text is the reason.
    Optional(&'static str),
}

/// An operation without the parts that all operations share.
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: String,
    pub(super) callers: Callers,
    pub(super) key: KeyHeader,
    /// Path and query parameters.
    pub(super) parameters: Vec<Value>,
    pub(super) body: Option<Body>,
    /// The status and the response of a successful request.
    pub(super) success: (&'static str, Value),
    /// Further problems, by status and name of the response.
    pub(super) problems: Vec<(&'static str, &'static str)>,
}

pub(super) struct Body {
    pub(super) schema: Value,
    pub(super) examples: Value,
    pub(super) max_bytes: usize,
}

/// An operation that reads what all producers sent.
pub(super) fn get(id: &'static str, tag: &'static str, summary: &'static str, answer: Value) -> Operation {
    Operation {
        id,
        tag,
        summary,
        description: String::new(),
        callers: Callers::Viewers,
        key: KeyHeader::Absent,
        parameters: Vec::new(),
        body: None,
        success: ("200", answer),
        problems: Vec::new(),
    }
}

pub(super) fn list(
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    params: &[Param],
    answer: Value,
) -> Operation {
    Operation { parameters: params.iter().map(query_parameter).collect(), ..get(id, tag, summary, answer) }
}

/// The description of a change of dead letters with this effect.
pub(super) fn in_chunks(effect: &str) -> String {
    format!(
        "{effect} A request changes at most 10,000 routes, in chunks; `remaining` counts the others. After a crash the repeated request \
         continues with what is left, and counts that."
    )
}

/// A change by an operator.
pub(super) fn change(
    id: &'static str,
    summary: &'static str,
    description: String,
    body: Body,
    answer: Value,
) -> Operation {
    Operation {
        description,
        callers: Callers::Operators,
        key: KeyHeader::Optional(
            "Required unless `dry_run` is true. A repeated request with the same body gets the first answer.",
        ),
        body: Some(body),
        problems: vec![("409", IN_PROGRESS), ("422", REQUEST_CONFLICT)],
        ..get(id, "operations", summary, answer)
    }
}

/// A change with a plan, with these texts (id, summary, description) and examples (of bodies and of
/// responses).
pub(super) fn planned_change<Request: JsonSchema, Done: JsonSchema, Planned: JsonSchema>(
    settings: &ApiSettings,
    schemas: &mut Schemas,
    (id, summary, about): (&'static str, &'static str, &str),
    (requests, responses): (Value, Value),
) -> Operation {
    let answers = json!({"anyOf": [schemas.answer::<Done>(), schemas.answer::<Planned>()]});
    let any = answer(
        "What was done; with `dry_run`, what would be.",
        answers,
        responses,
        &["Idempotency-Replayed"],
    );
    let schema = schemas.request::<Request>();
    let body = Body { schema, examples: requests, max_bytes: settings.max_body_bytes };
    change(id, summary, about.to_owned(), body, any)
}

impl Operation {
    pub(super) fn render(self) -> Value {
        let responses = self.responses();
        let mut parameters = self.parameters;
        parameters.extend(self.key.parameter());
        parameters.push(request_id_parameter());
        let mut operation = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "security": self.callers.security(),
            "parameters": parameters,
            "responses": responses,
        });
        let description = [self.description, self.callers.description()].join(" ");
        operation["description"] = description.trim().into();
        if let Some(Body { schema, examples, max_bytes }) = self.body {
            operation["requestBody"] = json!({
                "description": format!("At most {max_bytes} bytes."),
                "required": true,
                "x-max-bytes": max_bytes,
                "content": {"application/json": {"schema": schema, "examples": examples}},
            });
        }
        operation
    }

    /// The responses by status: the success, the problems of the operation, and those of every operation of
    /// its kind.
    fn responses(&self) -> Value {
        let mut problems = vec![("400", BAD_REQUEST), ("503", UNAVAILABLE)];
        problems.extend(&self.problems);
        if !matches!(self.callers, Callers::Anyone) {
            problems.extend([("401", UNAUTHORIZED), ("403", FORBIDDEN), ("429", TOO_MANY_REQUESTS)]);
        }
        if self.body.is_some() {
            problems.extend([
                ("408", REQUEST_TIMEOUT),
                ("413", BODY_TOO_LARGE),
                ("415", UNSUPPORTED_MEDIA_TYPE),
            ]);
        }
        let mut responses: Map<String, Value> = problems
            .into_iter()
            .map(|(status, name)| {
                (status.to_owned(), json!({"$ref": format!("#/components/responses/{name}")}))
            })
            .collect();
        let (status, answer) = &self.success;
        responses.insert((*status).to_owned(), answer.clone());
        Value::Object(responses)
    }
}

impl Callers {
    /// The kinds of tokens, any of which suffices.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Anyone => &[],
            Self::Producers => &["producer"],
            Self::Operators => &["operator"],
            Self::Viewers => &["viewer", "operator"],
            Self::Readers => &["producer", "viewer", "operator"],
            Self::Reporters => &["consumer", "operator"],
        }
    }

    fn security(self) -> Value {
        self.kinds().iter().map(|kind| json!({"token": [kind]})).collect()
    }

    fn description(self) -> String {
        let tokens: Vec<String> = self.kinds().iter().map(|kind| format!("`{kind}`")).collect();
        match tokens.as_slice() {
            [] => "It needs no token.".to_owned(),
            tokens => format!("Tokens: {}.", tokens.join(", ")),
        }
    }
}

impl KeyHeader {
    fn parameter(self) -> Option<Value> {
        let about = match self {
            Self::Absent => return None,
            Self::Required => {
                "The intent's idempotency key: chosen by the producer, who never uses it for another intent."
            }
            Self::Optional(about) => about,
        };
        let form = "Bare, or as a quoted string of structured fields (ASCII, without parameters); both forms of one content are one key.";
        Some(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": self == Self::Required,
            "description": format!("{about} {form} The content has 1 to {MAX_KEY_BYTES} bytes."),
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_BYTES},
            "example": "game-123:turn-54",
        }))
    }
}

fn request_id_parameter() -> Value {
    json!({
        "name": "X-Request-Id",
        "in": "header",
        "description": "Echoed. What is not 1 to 255 visible ASCII characters is replaced by an id that the service makes. The client's counts as \
            `request_id` of intents that have none.",
        "schema": {"type": "string"},
    })
}

pub(super) fn path_parameter(name: &str, about: &str, example: &str) -> Value {
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": about,
        "schema": {"type": "string", "minLength": 1},
        "example": example,
    })
}

pub(super) fn query_parameter(param: &Param) -> Value {
    json!({"name": param.name, "in": "query", "description": param.about, "schema": param.schema()})
}

/// A JSON response, with the headers that it may have besides `X-Request-Id`.
pub(super) fn answer(description: &str, schema: Value, examples: Value, headers: &[&str]) -> Value {
    json!({
        "description": description,
        "headers": header_refs(headers),
        "content": {"application/json": {"schema": schema, "examples": examples}},
    })
}
