//! Parameters of the query builder, whose type is written once, for client and server.
//!
//! The driver accepts the builder's own values whatever the column's type is, and a mismatch can store
//! garbage without an error. So every parameter is created here: the Rust type fixes the value, and the cast
//! beside it fixes the type that the server infers.
//!
//! An array is encoded in PostgreSQL's wire format once, here, and passes through the builder as bytes. As a
//! list of the builder's values, every element would be allocated twice (ADR 0016).

use bytes::BytesMut;
use sea_query::{Expr, ExprTrait, Value};
use tokio_postgres::types::{ToSql, Type};

/// One `text`.
pub fn text(value: impl Into<String>) -> Expr {
    Expr::val(value.into()).cast_as("text")
}

/// A `text[]`, from owned or borrowed strings.
pub fn texts<S: ToSql + AsRef<str>>(values: impl IntoIterator<Item = S>) -> Expr {
    let mut wire = BytesMut::new();
    let elements: Vec<S> = values.into_iter().collect();
    // Cannot fail: a batch is far below the format's limit of two gigabytes, and each element is a text.
    elements.to_sql(&Type::TEXT_ARRAY, &mut wire).expect("an array within the format's limits");
    Expr::val(Value::Bytes(Some(wire.into()))).cast_as("text[]")
}
