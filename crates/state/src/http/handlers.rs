//! The operations, one function each: parses the request, calls the store and converts the outcome into a
//! response.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::response::Response;

use super::access::Scope;
use super::body::{MediaTypes, parse_batch};
use super::error::ApiError;
use super::params::{self, Params, decode};
use super::preconditions::{self, Tag};
use super::{HttpState, Need, answer, read_text};
use crate::heavy::work_on;
use crate::query::Query;
use crate::{
    Delete, Key, Patch, Prefix, StatusCondition, Store, Value, Version, VersionCondition, Write,
    WriteConditions,
};

/// The most keys of one list, and the number without a limit.
const MAX_LIST_KEYS: u32 = 10_000;

/// The parameters of a list request.
struct ListRequest {
    prefix: Prefix,
    after: Option<Key>,
    limit: u32,
}

impl<S: Store> HttpState<S> {
    /// Checks that documents can be read and written.
    pub(super) async fn readyz(&self, head: &Parts) -> Result<Response, ApiError> {
        params::none(head.uri.query())?;
        self.ask_for(Need::Write, self.store.check_ready()).await.map(|()| answer::ok())
    }

    pub(super) async fn get(&self, scope: &Scope, head: &Parts, rest: &str) -> Result<Response, ApiError> {
        let key = key(rest)?;
        scope.check_key(&key)?;
        params::none(head.uri.query())?;
        let known = preconditions::of_get(&head.headers)?;
        let document = self.ask(self.store.get(&key)).await?.ok_or_else(ApiError::no_such_key)?;
        Ok(match is_known(known, document.version) {
            true => answer::not_modified(document.version),
            false => answer::document(&document),
        })
    }

    /// `HEAD`; reads only the document's version.
    pub(super) async fn head(&self, scope: &Scope, head: &Parts, rest: &str) -> Result<Response, ApiError> {
        let key = key(rest)?;
        scope.check_key(&key)?;
        params::none(head.uri.query())?;
        let known = preconditions::of_get(&head.headers)?;
        let version = self.ask(self.store.get_version(&key)).await?.ok_or_else(ApiError::no_such_key)?;
        Ok(if is_known(known, version) { answer::not_modified(version) } else { answer::head(version) })
    }

    pub(super) async fn put(
        &self,
        scope: &Scope,
        head: &Parts,
        body: Body,
        rest: &str,
    ) -> Result<Response, ApiError> {
        let (key, value) = key_and_value(scope, head, body, rest, MediaTypes::Json).await?;
        let version = preconditions::of_put(&head.headers)?;
        let conditions = WriteConditions { version, status: status_condition(head)? };
        written(self.ask_for(Need::Write, self.store.put(&key, &value, &conditions)).await?)
    }

    pub(super) async fn patch(
        &self,
        scope: &Scope,
        head: &Parts,
        body: Body,
        rest: &str,
    ) -> Result<Response, ApiError> {
        let (key, patch) = key_and_value(scope, head, body, rest, MediaTypes::MergePatch).await?;
        let version = preconditions::of_change(&head.headers)?;
        let conditions = WriteConditions { version, status: status_condition(head)? };
        match self.ask_for(Need::Write, self.store.patch(&key, &patch, &conditions)).await? {
            Patch::NotFound => Err(ApiError::no_such_key()),
            Patch::Written(outcome) => written(outcome),
            Patch::Invalid(reason) => Err(ApiError::bad_request(reason)),
        }
    }

    pub(super) async fn delete(&self, scope: &Scope, head: &Parts, rest: &str) -> Result<Response, ApiError> {
        let key = key(rest)?;
        scope.check_key(&key)?;
        params::none(head.uri.query())?;
        let condition: VersionCondition = preconditions::of_change(&head.headers)?;
        match self.ask_for(Need::Write, self.store.delete(&key, condition)).await? {
            Delete::Applied => Ok(answer::deleted()),
            Delete::NotFound => Err(ApiError::no_such_key()),
            Delete::VersionMismatch => Err(ApiError::precondition_failed()),
        }
    }

    pub(super) async fn list(&self, scope: &Scope, head: &Parts) -> Result<Response, ApiError> {
        let ListRequest { prefix, after, limit } = list_request(head)?;
        scope.check_prefix(&prefix)?;
        let page = self.ask(self.store.list(&prefix, after.as_ref(), limit)).await?;
        Ok(answer::keys(&page))
    }

    pub(super) async fn batch_get(
        &self,
        scope: &Scope,
        head: &Parts,
        body: Body,
    ) -> Result<Response, ApiError> {
        let text = read_text(head, body, MediaTypes::Json).await?;
        params::none(head.uri.query())?;
        let keys = parse_batch(&text)?;
        keys.iter().try_for_each(|key| scope.check_key(key))?;
        self.ask(self.store.get_many(&keys)).await.map(answer::rows)
    }

    pub(super) async fn query(&self, scope: &Scope, head: &Parts, body: Body) -> Result<Response, ApiError> {
        let text = read_text(head, body, MediaTypes::Json).await?;
        params::none(head.uri.query())?;
        let query = work_on(text.len(), move || Query::parse(text.as_bytes())).await?;
        scope.check_prefix(&query.prefix)?;
        if let Some((key, _)) = query.row_needed() {
            // A forged cursor must not reach beyond its prefix.
            scope.check_key(key)?;
        }
        let page = self.ask(self.store.query(&query)).await?;
        Ok(answer::page(page, &query))
    }
}

/// The key and the value of a write.
async fn key_and_value(
    scope: &Scope,
    head: &Parts,
    body: Body,
    rest: &str,
    types: MediaTypes,
) -> Result<(Key, Value), ApiError> {
    let key = key(rest)?;
    scope.check_key(&key)?;
    let text = read_text(head, body, types).await?;
    Ok((key, work_on(text.len(), move || Value::parse(text)).await?))
}

/// Returns true if the client already has this version.
fn is_known(known: Option<Tag>, version: Version) -> bool {
    match known {
        None => false,
        Some(Tag::Any) => true,
        Some(Tag::Value(known)) => known == Some(version),
    }
}

/// The key of a path.
fn key(rest: &str) -> Result<Key, ApiError> {
    let text =
        decode(rest).map_err(|reason| ApiError::bad_request(format!("the key cannot be read: {reason}")))?;
    Key::new(&text).map_err(ApiError::from)
}

/// The parameter `if_status` of a write.
fn status_condition(head: &Parts) -> Result<Option<StatusCondition>, ApiError> {
    let [status] = Params::parse(head.uri.query(), ["if_status"])?;
    match status.as_deref() {
        None => Ok(None),
        Some("") => Err(ApiError::bad_request("if_status is empty: leave it out to write unconditionally")),
        Some(status) if status.contains('\0') => Err(ApiError::bad_request("if_status must not contain NUL")),
        Some(status) => Ok(Some(StatusCondition(Arc::from(status)))),
    }
}

fn list_request(head: &Parts) -> Result<ListRequest, ApiError> {
    let [prefix, limit, after] = Params::parse(head.uri.query(), ["prefix", "limit", "after"])?;
    let limit = match limit {
        None => MAX_LIST_KEYS,
        Some(limit) => parse_limit(&limit).ok_or_else(|| {
            ApiError::bad_request(format!("limit is a whole number from 1 to {MAX_LIST_KEYS}"))
        })?,
    };
    let prefix = Prefix::new(&prefix.unwrap_or_default())?;
    let after = after.filter(|after| !after.is_empty());
    // The last key of a page can be longer than a new key may be, in a table that was taken over.
    let after = after
        .map(|after| Key::from_cursor(&after).ok_or_else(|| ApiError::bad_request("after contains NUL")));
    let after = after.transpose()?;
    Ok(ListRequest { prefix, after, limit })
}

fn parse_limit(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = is_number.then(|| text.parse().ok()).flatten()?;
    (1..=MAX_LIST_KEYS).contains(&limit).then_some(limit)
}

fn written(outcome: Write) -> Result<Response, ApiError> {
    match outcome {
        Write::Applied(version) => Ok(answer::written(version)),
        Write::VersionMismatch => Err(ApiError::precondition_failed()),
        Write::StatusMismatch { current } => Err(ApiError::status_conflict(current)),
    }
}
