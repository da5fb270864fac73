//! Reading rows: a column has a name, never a number, and a value of another type is an error, not a panic.

use ambient::Timestamp;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// A column that does not exist, or whose value has another type or range than expected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{problem}")]
pub struct ColumnError {
    problem: String,
}

/// A column of a result set. Its name is looked up once; the rows are then read without another lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    index: usize,
}

impl Column {
    /// The column `name`, for `row` and all rows of the same result set.
    pub fn find(row: &Row, name: &str) -> Result<Self, ColumnError> {
        let index = row.columns().iter().position(|column| column.name() == name);
        index
            .map(|index| Self { index })
            .ok_or_else(|| ColumnError { problem: format!("the rows have no column {name}") })
    }

    /// Its value in `row`.
    pub fn get<'a, T: FromSql<'a>>(self, row: &'a Row) -> Result<T, ColumnError> {
        row.try_get(self.index).map_err(|error| {
            let cause = std::error::Error::source(&error);
            ColumnError { problem: cause.map_or_else(|| error.to_string(), ToString::to_string) }
        })
    }

    /// Its value in `row`, a `timestamptz`. Infinity and years beyond 9999 are errors.
    pub fn get_instant(self, row: &Row) -> Result<Timestamp, ColumnError> {
        let value: DateTime<Utc> = self.get(row)?;
        Timestamp::try_from(value).map_err(|error| ColumnError { problem: error.to_string() })
    }

    /// Like [`Column::get_instant`], for a column that may be NULL.
    pub fn get_optional_instant(self, row: &Row) -> Result<Option<Timestamp>, ColumnError> {
        let value: Option<DateTime<Utc>> = self.get(row)?;
        let value = value.map(Timestamp::try_from).transpose();
        value.map_err(|error| ColumnError { problem: error.to_string() })
    }
}

/// The value of the column `name`. For large results of many columns see [`Column`].
pub fn get<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, ColumnError> {
    Column::find(row, name)?.get(row)
}

/// The value of the `timestamptz` column `name`. Infinity and years beyond 9999 are errors.
pub fn get_instant(row: &Row, name: &str) -> Result<Timestamp, ColumnError> {
    Column::find(row, name)?.get_instant(row)
}
