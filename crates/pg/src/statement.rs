//! Named statements, and the plans that they need.
//!
//! A crate lists its statements with [`statements!`](crate::statements), module by module. From these lists
//! it prepares all of them at the start ([`Session::prepare_all`](crate::Session::prepare_all)), and a test
//! compares the plan of each with its claim ([`check_plan`](crate::check_plan)). The name is in the log of a
//! slow statement and in the error of a failed one.

use std::borrow::Cow;

use sea_query::{PostgresQueryBuilder, QueryStatementWriter};
use sea_query_postgres::{PostgresBinder, PostgresValues};
use tokio_postgres::types::{ToSql, Type};

use crate::parameter::Parameter;

/// The text of a statement with its name. The text is the same for every size of batch, must contain no input
/// from outside, and casts each parameter to its type: `$1::text[]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    pub(crate) name: &'static str,
    pub(crate) plan: &'static [&'static str],
    pub(crate) text: Cow<'static, str>,
}

impl Statement {
    /// A statement whose plan must contain each of the texts in `plan`, such as the name of an index.
    pub const fn new(name: &'static str, plan: &'static [&'static str], text: &'static str) -> Self {
        Self { name, plan, text: Cow::Borrowed(text) }
    }

    /// A statement whose text is composed, for example with the name of a table. Otherwise like
    /// [`Statement::new`].
    pub fn composed(name: &'static str, plan: &'static [&'static str], text: String) -> Self {
        Self { name, plan, text: Cow::Owned(text) }
    }

    /// The name: the module and the effect, such as `routes.publish_if_unchanged`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The statement on tables whose names the caller chooses: each first text of a pair is replaced with the
    /// second, for example `{jobs}` with `"my_jobs"`.
    #[must_use]
    pub fn with_names(&self, names: &[(&str, &str)]) -> Self {
        let replace = |text: String, (placeholder, name): &(&str, &str)| text.replace(placeholder, name);
        Self::composed(self.name, self.plan, names.iter().fold(self.text.clone().into_owned(), replace))
    }

    /// The statement with its parameters `$1`, `$2`, … in their order, which [`crate::parameter`] makes.
    pub fn bind(&self, parameters: impl IntoIterator<Item = Parameter>) -> BoundStatement {
        let values = Values::Parameters(parameters.into_iter().collect());
        BoundStatement { statement: self.clone(), values }
    }
}

/// A statement with its parameters.
#[derive(Clone, Debug)]
pub struct BoundStatement {
    pub(crate) statement: Statement,
    pub(crate) values: Values,
}

#[derive(Clone, Debug)]
pub(crate) enum Values {
    Parameters(Vec<Parameter>),
    Built(PostgresValues),
}

impl BoundStatement {
    /// A statement of the query builder. Otherwise like [`Statement::new`].
    pub fn built(
        name: &'static str,
        plan: &'static [&'static str],
        statement: &(impl QueryStatementWriter + PostgresBinder),
    ) -> Self {
        let (text, values) = statement.build_postgres(PostgresQueryBuilder);
        Self { statement: Statement::composed(name, plan, text), values: Values::Built(values) }
    }

    /// The statement without its parameters.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// The values of the parameters, in their order.
    pub(crate) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        match &self.values {
            Values::Parameters(parameters) => {
                parameters.iter().map(|parameter| parameter as &(dyn ToSql + Sync)).collect()
            }
            Values::Built(values) => values.as_params(),
        }
    }

    /// The values with their types. The server infers the types of the builder's values from the casts beside
    /// them (bind.rs).
    pub(crate) fn typed_params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        match &self.values {
            Values::Parameters(parameters) => parameters
                .iter()
                .map(|parameter| (parameter as &(dyn ToSql + Sync), parameter.of_type()))
                .collect(),
            Values::Built(_) => self.params().into_iter().map(|value| (value, Type::UNKNOWN)).collect(),
        }
    }
}

/// Lists the statements of a module: a constant for each, and all of them as `STATEMENTS`.
///
/// ```
/// pg::statements! {
///     /// Marks the jobs as done.
///     FINISH = "jobs.finish", plan ["jobs_pkey"],
///         "UPDATE jobs SET done = true WHERE id = ANY ($1::bigint[])";
/// }
/// assert_eq!(STATEMENTS[0], FINISH);
/// ```
#[macro_export]
macro_rules! statements {
    ($($(#[$attribute:meta])* $constant:ident = $name:literal, plan [$($part:literal),*], $text:expr;)+) => {
        $($(#[$attribute])*
        pub(crate) const $constant: $crate::Statement = $crate::Statement::new($name, &[$($part),*], $text);)+

        /// All statements of this module.
        pub(crate) const STATEMENTS: &[$crate::Statement] = &[$($constant),+];
    };
}

#[cfg(test)]
mod tests {
    statements! {
        /// The first.
        FIRST = "test.first", plan ["first_pkey"], "SELECT $1::bigint, $2::text";
        /// The second.
        SECOND = "test.second", plan [], "SELECT 1";
    }

    #[test]
    fn the_list_of_a_module_contains_each_of_its_statements() {
        assert_eq!(STATEMENTS, [FIRST, SECOND]);
        assert_eq!(STATEMENTS[0].name(), "test.first");
    }
}
