//! Statements on batches: the text is the same for every size of batch.

use sea_query::{Expr, Func, Iden, InsertStatement, Query};

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
