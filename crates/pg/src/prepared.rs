//! A statement with its parameters, ready to be run once or repeatedly.

use std::sync::Arc;

use bytes::BytesMut;
use sea_query::QueryStatementWriter;
use sea_query_postgres::{PostgresBinder, PostgresValues};
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::statement::BoundStatement;

/// A statement of the query builder.
pub trait PostgresBinderRef: Sync {
    /// The text and the parameters of the statement.
    fn build_ref(&self) -> (String, PostgresValues);

    /// A text that replaces one of the parameters: see [`crate::sql::Written::with_text`].
    fn shared(&self) -> Option<(usize, Arc<str>)> {
        None
    }
}

impl<T: QueryStatementWriter + PostgresBinder + Sync> PostgresBinderRef for T {
    fn build_ref(&self) -> (String, PostgresValues) {
        self.build_postgres(sea_query::PostgresQueryBuilder)
    }
}

/// A statement with its parameters.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) bound: BoundStatement,
    /// The statement as the server prepared it. `None` behind a pooler, where its name may refer to another
    /// statement.
    pub(crate) statement: Option<Statement>,
}

/// A text that is sent without being copied.
#[derive(Clone, Debug)]
pub(crate) struct SharedText(pub(crate) Arc<str>);

impl ToSql for SharedText {
    fn to_sql(
        &self,
        sql_type: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        (&*self.0).to_sql(sql_type, out)
    }

    fn accepts(sql_type: &Type) -> bool {
        <&str as ToSql>::accepts(sql_type)
    }

    to_sql_checked!();
}
