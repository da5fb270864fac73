//! The target of a request: its method and its path.

use axum::http::Method;

use super::error::ApiError;

/// The requested operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HttpOperation {
    Healthz,
    Readyz,
    Get,
    Head,
    Put,
    Patch,
    Delete,
    List,
    BatchGet,
    Query,
}

/// The names of all operations, as a listener reports them to its observer.
pub const OPERATIONS: [&str; 10] =
    ["healthz", "readyz", "get", "head", "put", "patch", "delete", "list", "batch_get", "query"];

impl HttpOperation {
    /// The name, one of [`OPERATIONS`].
    pub(super) fn name(self) -> &'static str {
        OPERATIONS[self as usize]
    }

    /// Returns true if the operation changes documents.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Put | Self::Patch | Self::Delete)
    }

    /// Returns true if the operation reveals nothing about documents.
    pub(super) fn is_probe(self) -> bool {
        matches!(self, Self::Healthz | Self::Readyz)
    }
}

/// An operation and the variable part of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestTarget<'a> {
    pub(super) operation: HttpOperation,
    /// The path after `/keys/`, still encoded; empty for other operations.
    pub(super) rest: &'a str,
}

impl<'a> RequestTarget<'a> {
    /// 404 for a path that does not exist, 405 for a method that the path does not accept.
    pub(super) fn of(method: &Method, path: &'a str) -> Result<Self, ApiError> {
        let (rest, allow) = match path {
            "/healthz" | "/readyz" => ("", "GET, HEAD"),
            "/query" | "/keys:batchGet" => ("", "POST"),
            "/keys/" => ("", "GET"),
            _ => match path.strip_prefix("/keys/") {
                Some(rest) => (rest, "GET, HEAD, PUT, PATCH, DELETE"),
                None => return Err(ApiError::no_such_path()),
            },
        };
        let operation = match (path, method.as_str()) {
            ("/healthz", "GET" | "HEAD") => HttpOperation::Healthz,
            ("/readyz", "GET" | "HEAD") => HttpOperation::Readyz,
            ("/query", "POST") => HttpOperation::Query,
            ("/keys:batchGet", "POST") => HttpOperation::BatchGet,
            ("/keys/", "GET") => HttpOperation::List,
            _ if rest.is_empty() => return Err(ApiError::method_not_allowed(allow)),
            (_, "GET") => HttpOperation::Get,
            (_, "HEAD") => HttpOperation::Head,
            (_, "PUT") => HttpOperation::Put,
            (_, "PATCH") => HttpOperation::Patch,
            (_, "DELETE") => HttpOperation::Delete,
            _ => return Err(ApiError::method_not_allowed(allow)),
        };
        Ok(Self { operation, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_name_in_the_list() {
        let all = [
            (HttpOperation::Healthz, "healthz"),
            (HttpOperation::Readyz, "readyz"),
            (HttpOperation::Get, "get"),
            (HttpOperation::Head, "head"),
            (HttpOperation::Put, "put"),
            (HttpOperation::Patch, "patch"),
            (HttpOperation::Delete, "delete"),
            (HttpOperation::List, "list"),
            (HttpOperation::BatchGet, "batch_get"),
            (HttpOperation::Query, "query"),
        ];
        assert_eq!(all.map(|(operation, _)| operation.name()), all.map(|(_, name)| name));
    }

    #[test]
    fn everything_after_keys_is_taken_literally() {
        for rest in ["a", "/", "//", ".", "..", "a/../b", "%2F", "a//b/", ":batchGet", "query"] {
            let path = format!("/keys/{rest}");
            let target = RequestTarget::of(&Method::GET, &path);
            assert!(
                target == Ok(RequestTarget { operation: HttpOperation::Get, rest }),
                "{path}: {target:?}"
            );
        }
    }
}
