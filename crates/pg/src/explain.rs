//! Plans of statements, for tests.

use crate::statement::{BoundStatement, Statement};
use crate::{PgError, Session, row};

/// Compares the generic plan under the session's settings with the claim of the statement: it contains each
/// text of the claim, and reads no table from its beginning to its end, unless the claim contains `Seq Scan`.
/// Returns the difference, with the plan. Nothing is executed.
pub async fn check_plan(session: &Session, statement: &Statement) -> Result<(), String> {
    let nulls = vec!["NULL"; count_parameters(&statement.text)];
    let plan = explain(session, &statement.text, "COSTS OFF", &nulls).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{} cannot be explained: {}\n{}", statement.name, cause.unwrap_or_default(), statement.text)
    })?;
    let plan = plan.join("\n");
    let missing: Vec<&str> = statement.plan.iter().copied().filter(|part| !plan.contains(part)).collect();
    if !missing.is_empty() {
        return Err(format!("the plan of {} lacks {}:\n{plan}", statement.name, missing.join(", ")));
    }
    let scans = plan.contains("Seq Scan on ") && !statement.plan.iter().any(|part| part.contains("Seq Scan"));
    if scans { Err(format!("{} reads a whole table:\n{plan}", statement.name)) } else { Ok(()) }
}

/// Runs a statement and returns its generic plan with what each node did, as JSON.
pub async fn explain_analyze(session: &Session, bound: &BoundStatement) -> Result<String, PgError> {
    let prepared = session.prepare(bound.clone()).await?;
    let types = prepared.statement.iter().flat_map(tokio_postgres::Statement::params);
    let casts = types.zip(1..).map(|(of_type, n)| format!("CAST(${n} AS {})::text", of_type.name()));
    let casts = casts.collect::<Vec<_>>().join(", ");
    // The server writes each value as a literal.
    let text = format!("SELECT ARRAY(SELECT quote_nullable(v) FROM unnest(ARRAY[{casts}]::text[]) v) AS v");
    let statement = Statement::composed("explain.literals", &[], text);
    let rows = session.query_once(BoundStatement { statement, values: bound.values.clone() }).await?;
    let literals = rows.first().map_or(Ok(Vec::new()), |found| row::get::<Vec<String>>(found, "v"));
    let literals = literals.map_err(|error| PgError::unavailable(session.operation(), error))?;
    let literals: Vec<&str> = literals.iter().map(String::as_str).collect();
    let options = "ANALYZE, VERBOSE, BUFFERS, TIMING OFF, FORMAT JSON";
    Ok(explain(session, &bound.statement.text, options, &literals).await?.concat())
}

async fn explain(
    session: &Session,
    text: &str,
    options: &str,
    literals: &[&str],
) -> Result<Vec<String>, PgError> {
    let arguments = if literals.is_empty() { String::new() } else { format!(" ({})", literals.join(", ")) };
    session.execute_batch("SET plan_cache_mode = force_generic_plan").await?;
    session.execute_batch(&format!("PREPARE pg_client_explain AS {text}")).await?;
    let plan = session.raw(&format!("EXPLAIN ({options}) EXECUTE pg_client_explain{arguments}")).await?;
    session.execute_batch("DEALLOCATE pg_client_explain").await?;
    Ok(plan)
}

/// The highest number of a parameter in a text.
fn count_parameters(text: &str) -> usize {
    let number = |after: &str| {
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        after[..digits].parse().unwrap_or(0)
    };
    text.split('$').skip(1).map(number).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_by_their_highest_number() {
        for (text, count) in [("SELECT 1", 0), ("$2 $1 $2", 2), ("a = $12::text", 12), ("'$' $", 0)] {
            assert_eq!(count_parameters(text), count, "{text}");
        }
    }
}
