//! Statements on batches: the text is the same for every size of batch.

use sea_query::{Expr, Func, Iden, InsertStatement, PostgresQueryBuilder, Query};
use sea_query_postgres::{PostgresBinder, PostgresValues};

use crate::PostgresBinderRef;

/// A statement that is written out, for those that the query builder would make harder to read. `$1`, `$2`, … in its text are
/// the parameters in their order, each as often as it is named. The text must contain nothing that came from outside.
#[derive(Clone, Debug)]
pub struct Written {
    text: String,
    parameters: Vec<Expr>,
}

impl Written {
    /// The statement with its parameters, which [`crate::bind`] makes.
    pub fn new(text: impl Into<String>, parameters: impl IntoIterator<Item = Expr>) -> Self {
        Self { text: text.into(), parameters: parameters.into_iter().collect() }
    }
}

impl PostgresBinderRef for Written {
    fn build_ref(&self) -> (String, PostgresValues) {
        // The builder numbers parameters in expressions only, and an expression stands in a SELECT.
        const SELECT: &str = "SELECT ";
        let expression = Expr::cust_with_exprs(self.text.clone(), self.parameters.iter().cloned());
        let (text, values) = Query::select().expr(expression).build_postgres(PostgresQueryBuilder);
        (text.strip_prefix(SELECT).map_or(text.clone(), str::to_owned), values)
    }
}

/// Any element of an array parameter, for `column = ANY(array)`.
pub fn any(array: Expr) -> Expr {
    Expr::expr(Func::cust("ANY").arg(array))
}

/// The elements of an array parameter as rows. Several in one `SELECT` advance together.
pub fn unnest(array: Expr) -> Expr {
    Expr::expr(Func::cust("UNNEST").arg(array))
}

/// `INSERT INTO table (columns) SELECT values`.
pub fn insert_rows<T: Iden + Copy + 'static, const N: usize>(
    table: T,
    pairs: [(T, Expr); N],
) -> InsertStatement {
    let mut insert = Query::insert();
    insert.into_table(table).columns(pairs.iter().map(|(column, _)| *column));
    let mut select = Query::select();
    select.exprs(pairs.into_iter().map(|(_, value)| value));
    // Cannot fail: columns and expressions come in pairs.
    insert.select_from(select).expect("as many expressions as columns");
    insert
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind;

    #[test]
    fn a_written_statement_keeps_its_text_and_numbers_its_parameters() {
        let written = Written::new(
            "WITH a AS (SELECT $2, '$1') UPDATE \"t\" SET b = $1 WHERE c = $2",
            [bind::bigint(1), bind::text("x")],
        );
        let (text, values) = written.build_ref();
        let expected = "WITH a AS (SELECT CAST($1 AS text), '$1') UPDATE \"t\" SET b = CAST($2 AS bigint) \
                        WHERE c = CAST($3 AS text)";
        assert_eq!(text, expected);
        assert_eq!(values.as_params().len(), 3);
    }
}
