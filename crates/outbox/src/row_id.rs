//! The columns of a row, and the primary key as the driver reads it.

use std::error::Error;

use pg::row;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::OutboxError;

/// A column of type `uuid`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowId(pub(crate) Uuid);

impl<'a> FromSql<'a> for RowId {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Uuid::from_slice(raw)?))
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::UUID
    }
}

/// Reads a column by its name.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, OutboxError> {
    row::get(row, name).map_err(|source| OutboxError::Corrupt { column: name, source })
}
