//! Statements on batches: the text is the same for every size of batch.

use std::sync::Arc;

use sea_query::{Expr, Func, Iden, InsertStatement, PostgresQueryBuilder, Query};
use sea_query_postgres::{PostgresBinder, PostgresValues};

use crate::PostgresBinderRef;

/// A statement in plain SQL, for those that the query builder would make harder to read. `$1`, `$2`, … in its
/// text are the parameters in their order, wherever they stand. The text must contain no input from outside.
#[derive(Clone, Debug)]
pub struct Written {
    text: String,
    parameters: Vec<Expr>,
    shared: Option<(usize, Arc<str>)>,
}

impl Written {
    /// A statement with its parameters, which [`crate::bind`] makes.
    pub fn new(text: impl Into<String>, parameters: impl IntoIterator<Item = Expr>) -> Self {
        Self { text: text.into(), parameters: parameters.into_iter().collect(), shared: None }
    }

    /// Replaces a parameter of type `text`, counted from 0, with this text: a large text is then not copied
    /// into the statement.
    #[must_use]
    pub fn with_text(self, parameter: usize, text: Arc<str>) -> Self {
        Self { shared: Some((parameter, text)), ..self }
    }
}

impl PostgresBinderRef for Written {
    fn shared(&self) -> Option<(usize, Arc<str>)> {
        self.shared.clone()
    }

    fn build_ref(&self) -> (String, PostgresValues) {
        // Renders each parameter separately: `SELECT CAST($1 AS text)`. The builder's own templates treat
        // text in brackets as a quoted name.
        const SELECT: &str = "SELECT ";
        let mut values = Vec::new();
        let casts: Vec<String> = (self.parameters.iter().enumerate())
            .map(|(index, parameter)| {
                let (text, PostgresValues(value)) =
                    Query::select().expr(parameter.clone()).build_postgres(PostgresQueryBuilder);
                values.extend(value);
                text.trim_start_matches(SELECT).replacen("$1", &format!("${}", index + 1), 1)
            })
            .collect();
        let mut parts = self.text.split('$');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let number = part[..digits].parse::<usize>().ok();
            match number.and_then(|number| casts.get(number.checked_sub(1)?)) {
                Some(cast) => text.push_str(cast),
                // Not the name of a parameter; the server reports the error.
                None => text.extend(["$", &part[..digits]]),
            }
            text.push_str(&part[digits..]);
        }
        (text, PostgresValues(values))
    }
}

/// Matches any element of an array parameter, for `column = ANY(array)`.
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
        let text = "WITH a AS (SELECT $2) UPDATE \"t\" SET b = ($1)[c] WHERE d[$1] = $2 AND e = $3";
        let (text, values) = Written::new(text, [bind::bigint(1), bind::text("x")]).build_ref();
        let expected = "WITH a AS (SELECT CAST($2 AS text)) UPDATE \"t\" SET b = (CAST($1 AS bigint))[c] \
                        WHERE d[CAST($1 AS bigint)] = CAST($2 AS text) AND e = $3";
        assert_eq!(text, expected);
        assert_eq!(values.as_params().len(), 2);
    }
}
