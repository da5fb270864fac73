//! A statement with its parameters, ready to be run once or repeatedly.

use std::sync::Arc;

use bytes::BytesMut;
use sea_query::QueryStatementWriter;
use sea_query_postgres::{PostgresBinder, PostgresValues};
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

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
    pub(crate) sql: String,
    pub(crate) values: PostgresValues,
    /// The statement as the server prepared it. `None` behind a pooler, where its name may refer to another
    /// statement.
    pub(crate) statement: Option<Statement>,
    pub(crate) shared: Option<(usize, SharedText)>,
}

/// A text that is sent without being copied.
#[derive(Debug)]
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

impl Prepared {
    /// The values of the parameters, in their order.
    pub(crate) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut params = self.values.as_params();
        if let Some((index, text)) = &self.shared
            && let Some(param) = params.get_mut(*index)
        {
            *param = text;
        }
        params
    }
}

/// Parameters without their types: the server infers each type from the cast beside the parameter (bind.rs).
pub(crate) fn untyped<'a>(params: &[&'a (dyn ToSql + Sync)]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().map(|param| (*param, Type::UNKNOWN)).collect()
}
