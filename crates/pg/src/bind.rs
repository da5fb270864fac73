//! Parameters whose type is said once, for both ends.
//!
//! The query builder's own values are accepted by the driver whatever the column's type is, and a mismatch can store
//! garbage without an error. So every parameter is made here: the Rust type fixes the value, and the cast beside it
//! fixes the type that the server infers.

use ambient::Timestamp;
use chrono::{DateTime, Utc};
use sea_query::{ArrayType, Expr, ExprTrait, Value};

fn cast(value: impl Into<Value>, sql_type: &'static str) -> Expr {
    Expr::val(value).cast_as(sql_type)
}

fn array(sql_type: &'static str, element: ArrayType, values: impl Iterator<Item = Value>) -> Expr {
    cast(Value::Array(element, Some(Box::new(values.collect()))), sql_type)
}

/// One `text`.
pub fn text(value: impl Into<String>) -> Expr {
    cast(value.into(), "text")
}

/// One `bigint`.
pub fn bigint(value: i64) -> Expr {
    cast(value, "bigint")
}

/// One `timestamptz`.
pub fn instant(value: Timestamp) -> Expr {
    cast(DateTime::<Utc>::from(value), "timestamptz")
}

/// A `text[]`.
pub fn texts(values: impl IntoIterator<Item = String>) -> Expr {
    array("text[]", ArrayType::String, values.into_iter().map(Value::from))
}

/// A `bigint[]`.
pub fn bigints(values: impl IntoIterator<Item = i64>) -> Expr {
    array("bigint[]", ArrayType::BigInt, values.into_iter().map(Value::from))
}

/// A `timestamptz[]`.
pub fn instants(values: impl IntoIterator<Item = Timestamp>) -> Expr {
    let values = values.into_iter().map(|value| Value::from(DateTime::<Utc>::from(value)));
    array("timestamptz[]", ArrayType::ChronoDateTimeUtc, values)
}

/// A `timestamptz[]` with gaps.
pub fn optional_instants(values: impl IntoIterator<Item = Option<Timestamp>>) -> Expr {
    let values = values.into_iter().map(|value| Value::from(value.map(DateTime::<Utc>::from)));
    array("timestamptz[]", ArrayType::ChronoDateTimeUtc, values)
}

/// A `jsonb[]` of JSON texts. The server parses them, so what it cannot hold it refuses.
pub fn jsonbs(values: impl IntoIterator<Item = String>) -> Expr {
    texts(values).cast_as("jsonb[]")
}
