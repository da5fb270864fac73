//! Parameters whose type is written once, for client and server.
//!
//! The driver accepts the query builder's own values whatever the column's type is, and a mismatch can store
//! garbage without an error. So every parameter is created here: the Rust type fixes the value, and the cast
//! beside it fixes the type that the server infers.
//!
//! An array is encoded in PostgreSQL's wire format once, here, and passes through the builder as bytes. As a
//! list of the builder's values, every element would be allocated twice, which took a fifth of the service's
//! processor time (ADR 0016).

use ambient::Timestamp;
use bytes::BytesMut;
use chrono::{DateTime, Utc};
use sea_query::{Expr, ExprTrait, Value};
use tokio_postgres::types::{ToSql, Type};

use crate::RawTimestamp;

fn cast(value: impl Into<Value>, sql_type: &'static str) -> Expr {
    Expr::val(value).cast_as(sql_type)
}

fn array<T: ToSql>(sql_type: &'static str, wire_type: &Type, elements: impl Iterator<Item = T>) -> Expr {
    let mut wire = BytesMut::new();
    let elements: Vec<T> = elements.collect();
    // Cannot fail: a batch is far below the format's limit of two gigabytes, and each element is of the
    // array's type.
    elements.to_sql(wire_type, &mut wire).expect("an array within the format's limits");
    cast(Value::Bytes(Some(wire.into())), sql_type)
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

/// One `bytea`.
pub fn bytea(value: impl Into<Vec<u8>>) -> Expr {
    cast(Value::Bytes(Some(value.into())), "bytea")
}

/// One `timestamptz`, infinities included.
pub fn raw_instant(value: RawTimestamp) -> Expr {
    cast(Value::Bytes(Some(value.to_wire().to_vec())), "timestamptz")
}

/// One `uuid`, from its sixteen bytes.
pub fn uuid(value: [u8; 16]) -> Expr {
    cast(Value::Bytes(Some(value.to_vec())), "uuid")
}

/// A `uuid[]`; each element is given as its sixteen bytes.
pub fn uuids(values: impl IntoIterator<Item = [u8; 16]>) -> Expr {
    let values: Vec<[u8; 16]> = values.into_iter().collect();
    array("uuid[]", &Type::UUID_ARRAY, values.iter().map(|value| &value[..]))
}

/// A `text[]`, from owned or borrowed strings.
pub fn texts<S: ToSql + AsRef<str>>(values: impl IntoIterator<Item = S>) -> Expr {
    array("text[]", &Type::TEXT_ARRAY, values.into_iter())
}

/// A `bytea[]`.
pub fn byteas<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Expr {
    array("bytea[]", &Type::BYTEA_ARRAY, values.into_iter())
}

/// A `bigint[]`.
pub fn bigints(values: impl IntoIterator<Item = i64>) -> Expr {
    array("bigint[]", &Type::INT8_ARRAY, values.into_iter())
}

/// A `timestamptz[]`.
pub fn instants(values: impl IntoIterator<Item = Timestamp>) -> Expr {
    array("timestamptz[]", &Type::TIMESTAMPTZ_ARRAY, values.into_iter().map(DateTime::<Utc>::from))
}

/// A `timestamptz[]`, infinities included.
pub fn raw_instants(values: impl IntoIterator<Item = RawTimestamp>) -> Expr {
    let values: Vec<[u8; 8]> = values.into_iter().map(RawTimestamp::to_wire).collect();
    array("timestamptz[]", &Type::TIMESTAMPTZ_ARRAY, values.iter().map(|value| &value[..]))
}

/// A `timestamptz[]` that may contain NULL.
pub fn optional_instants(values: impl IntoIterator<Item = Option<Timestamp>>) -> Expr {
    let values = values.into_iter().map(|value| value.map(DateTime::<Utc>::from));
    array("timestamptz[]", &Type::TIMESTAMPTZ_ARRAY, values)
}

/// A `jsonb[]`, from JSON texts. The server parses them and rejects what it cannot store.
pub fn jsonbs<S: ToSql + AsRef<str>>(values: impl IntoIterator<Item = S>) -> Expr {
    texts(values).cast_as("jsonb[]")
}
