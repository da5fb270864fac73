//! The measured operations: each as a request and as the statement that the state store sends for it.

use anyhow::Context;
use pg::parameter::{Parameter, Parameters};
use serde_json::{Value, json};
use state::IndexSpec;
use state::query::{Query, compile};
use tokio_postgres::types::ToSql;

/// The declared indexes.
pub(super) const INDEXES: &str = "(progress)::numeric,(deadline_at)::timestamptz";
/// The number of different elements, which are sent cyclically.
const ELEMENTS: u32 = 500;
/// Keys of one `batchGet`.
const BATCH: u32 = 100;
/// Documents of one page.
const PAGE: u32 = 50;
/// Documents that belong to one order.
const OF_ORDER: u32 = 10;
/// Documents with the same progress.
const OF_PROGRESS: u32 = 10;

/// An operation on documents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentOperation {
    Get,
    Put,
    CompareAndSet,
    MergePatch,
    BatchGet,
    QueryEquality,
    QueryRange,
    QueryTimes,
    QueryPrefix,
}

/// A request, and the expected status of its response.
pub(super) struct ExpectedRequest {
    pub(super) bytes: Vec<u8>,
    pub(super) status: u16,
}

type ParameterRow = Vec<Box<dyn ToSql + Sync + Send>>;

/// The statements with the same effect.
pub(super) enum OperationStatements {
    /// One text, with parameters.
    Prepared { text: String, parameters: Vec<ParameterRow> },
    /// Texts with their parameters, for whose values a query is planned.
    Planned(Vec<(String, Vec<Parameter>)>),
}

impl DocumentOperation {
    pub(super) const ALL: [Self; 9] = [
        Self::Get,
        Self::Put,
        Self::CompareAndSet,
        Self::MergePatch,
        Self::BatchGet,
        Self::QueryEquality,
        Self::QueryRange,
        Self::QueryTimes,
        Self::QueryPrefix,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::CompareAndSet => "compare-and-set",
            Self::MergePatch => "merge patch",
            Self::BatchGet => "batch get of 100",
            Self::QueryEquality => "query by equality",
            Self::QueryRange => "query by a range, sorted",
            Self::QueryTimes => "query by times",
            Self::QueryPrefix => "query by prefix",
        }
    }

    pub(super) fn is_query(self) -> bool {
        matches!(self, Self::QueryEquality | Self::QueryRange | Self::QueryTimes | Self::QueryPrefix)
    }

    pub(super) fn requests(self, documents: u32) -> Vec<ExpectedRequest> {
        numbers(documents).map(|n| self.request(n, documents)).collect()
    }

    fn request(self, n: u32, documents: u32) -> ExpectedRequest {
        let path = format!("/keys/{}", key(n));
        let json_type = "application/json";
        let (method, path, body, status) = match self {
            Self::Get => ("GET", path, None, 200),
            Self::Put => ("PUT", path, Some((json_type, document(n))), 204),
            Self::CompareAndSet => {
                ("PUT", format!("{path}?if_status=running"), Some((json_type, document(n))), 204)
            }
            Self::MergePatch => {
                let patch = json!({ "touched": n, "message": null });
                ("PATCH", path, Some(("application/merge-patch+json", patch)), 204)
            }
            Self::BatchGet => {
                let body = json!({ "keys": batch(n, documents) });
                ("POST", "/keys:batchGet".to_owned(), Some((json_type, body)), 200)
            }
            _ => ("POST", "/query".to_owned(), Some((json_type, self.query(n, documents))), 200),
        };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        let text = match body {
            None => format!("{head}\r\n"),
            Some((media_type, body)) => {
                let body = body.to_string();
                format!("{head}content-type: {media_type}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            }
        };
        ExpectedRequest { bytes: text.into_bytes(), status }
    }

    pub(super) fn statements(self, documents: u32) -> anyhow::Result<OperationStatements> {
        const COLUMNS: &str = "key, value::text, version, created_at, updated_at";
        const WRITTEN: &str = "version = nextval('kv_version_seq'),
            updated_at = GREATEST(clock_timestamp(), kv.updated_at + interval '1 microsecond')";
        let text = match self {
            Self::Get => format!("SELECT {COLUMNS} FROM kv WHERE key = $1 LIMIT 1"),
            Self::BatchGet => format!("SELECT {COLUMNS} FROM kv WHERE key = ANY ($1)"),
            Self::Put => format!(
                "INSERT INTO kv (key, value, version, created_at, updated_at)
                 VALUES ($1, $2::text::jsonb, nextval('kv_version_seq'), statement_timestamp(), statement_timestamp())
                 ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, {WRITTEN} RETURNING kv.version"
            ),
            Self::CompareAndSet => format!(
                "UPDATE kv SET value = $2::text::jsonb, {WRITTEN}
                 WHERE key = $1 AND value ->> 'status' = 'running' RETURNING version"
            ),
            // Flat documents need no merge of levels.
            Self::MergePatch => format!(
                "UPDATE kv SET value = jsonb_strip_nulls(value || $2::text::jsonb), {WRITTEN}
                 WHERE key = $1 RETURNING version"
            ),
            _ => return self.queries(documents).map(OperationStatements::Planned),
        };
        let parameters = numbers(documents).map(|n| self.parameters(n, documents)).collect();
        Ok(OperationStatements::Prepared { text, parameters })
    }

    fn parameters(self, n: u32, documents: u32) -> ParameterRow {
        match self {
            Self::BatchGet => vec![Box::new(batch(n, documents))],
            Self::Get => vec![Box::new(key(n))],
            Self::MergePatch => {
                vec![Box::new(key(n)), Box::new(json!({ "touched": n, "message": null }).to_string())]
            }
            _ => vec![Box::new(key(n)), Box::new(document(n).to_string())],
        }
    }

    fn query(self, n: u32, documents: u32) -> Value {
        match self {
            Self::QueryEquality => json!({ "filter": { "order": order(n) } }),
            Self::QueryTimes => {
                // One minute for each document.
                let from = n.min(documents.saturating_sub(PAGE));
                let filter = json!({ "$after": deadline(from), "$before": deadline(from + PAGE) });
                json!({ "filter": { "deadline_at": filter }, "limit": PAGE })
            }
            Self::QueryRange => {
                let from = progress(n);
                let filter = json!({ "$gte": from, "$lt": from + 10 });
                json!({ "filter": { "progress": filter }, "sort": ["progress"], "limit": PAGE })
            }
            _ => json!({ "prefix": &key(n)[..key(n).len() - 2], "limit": PAGE }),
        }
    }

    /// The page of each query, as the state store compiles it.
    fn queries(self, documents: u32) -> anyhow::Result<Vec<(String, Vec<Parameter>)>> {
        let specs =
            IndexSpec::parse_list(INDEXES).map_err(|errors| anyhow::anyhow!("{:?}", errors.reasons()))?;
        let indexes = specs.iter().map(|spec| (spec.member().clone(), spec.kind())).collect();
        let table = compile::Table::new("kv", indexes);
        let text = |n| {
            let query = Query::parse(self.query(n, documents).to_string().as_bytes())?;
            let (plan, mut parameters) = (compile::ReadPlan::Planned, Parameters::default());
            let columns = "key, value::text AS value, version, created_at, updated_at";
            let text = compile::page(&query, &table, plan, columns, &mut parameters)?;
            Ok((text, parameters.into_iter().collect()))
        };
        numbers(documents).map(text).collect::<Result<_, state::StateError>>().context("a query is wrong")
    }
}

/// Numbers of documents, spread over all of them.
fn numbers(documents: u32) -> impl Iterator<Item = u32> {
    (0..ELEMENTS).map(move |n| (u64::from(n) * 7_919 * 131 % u64::from(documents)) as u32)
}

fn key(n: u32) -> String {
    format!("task/{n:07}")
}

fn batch(n: u32, documents: u32) -> Vec<String> {
    (0..BATCH).map(|at| key((n + at * 97) % documents)).collect()
}

fn order(n: u32) -> String {
    format!("o-{}", n / OF_ORDER)
}

fn progress(n: u32) -> u32 {
    n / OF_PROGRESS
}

/// The deadline of document `n`: `n` minutes after the start of the year.
fn deadline(n: u32) -> String {
    let at =
        ambient::Timestamp::UNIX_EPOCH + std::time::Duration::from_secs(1_767_225_600 + 60 * u64::from(n));
    at.to_string()
}

/// Document `n`, of about 300 bytes.
fn document(n: u32) -> Value {
    json!({
        "status": "running", "order": order(n), "progress": progress(n), "deadline_at": deadline(n),
        "message": "x".repeat(160), "attempt": n % 7,
    })
}

/// The SQL that inserts the documents.
pub(super) fn documents_sql(documents: u32) -> String {
    format!(
        "INSERT INTO kv (key, value)
         SELECT 'task/' || lpad(n::text, 7, '0'), jsonb_build_object(
             'status', 'running', 'order', 'o-' || n / {OF_ORDER}, 'progress', n / {OF_PROGRESS},
             'deadline_at', to_char(timestamp '2026-01-01' + n * interval '1 minute', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
             'message', repeat('x', 160), 'attempt', n % 7)
         FROM generate_series(0, {} - 1) AS n",
        documents
    )
}

#[cfg(test)]
mod tests {
    use state::Key;

    use super::*;

    #[test]
    fn every_element_can_be_sent_and_names_a_document() {
        for operation in DocumentOperation::ALL {
            assert_eq!(operation.requests(1_000).len(), ELEMENTS as usize, "{}", operation.name());
            assert!(operation.statements(1_000).is_ok(), "{}", operation.name());
        }
        assert!(numbers(1_000).all(|n| n < 1_000));
        assert!(Key::new(&key(999_999)).is_ok());
    }

    #[test]
    fn a_query_by_times_names_instants_that_the_language_knows() {
        assert_eq!(deadline(1), "2026-01-01T00:01:00.000000Z");
    }
}
