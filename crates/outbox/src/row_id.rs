//! The primary key as the driver reads it.

use std::error::Error;

use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

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
