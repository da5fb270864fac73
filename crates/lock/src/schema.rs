//! The two tables: their names, their columns and the SQL that creates them.

use pg::Statement;
use pg::rights::Grant;

use crate::LockError;

/// The maximum length of a table name: with `idx_` before it and `_lock_id` after it, an index name has the
/// 63 bytes that PostgreSQL keeps.
pub const MAX_TABLE_NAME_BYTES: usize = 51;

/// The validated names of the two tables. They are used quoted, in the first schema of `search_path`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableNames {
    locks: String,
    fence_counters: String,
}

impl Default for TableNames {
    /// Returns `locks` and `fence_counters`.
    fn default() -> Self {
        Self { locks: "locks".to_owned(), fence_counters: "fence_counters".to_owned() }
    }
}

impl TableNames {
    /// Creates names of the caller's choice. Returns [`LockError::InvalidArgument`] unless each is a letter
    /// or `_` followed by letters, digits and `_`, at most [`MAX_TABLE_NAME_BYTES`], and they differ by more
    /// than case: locks are deleted, counters never.
    pub fn new(locks: &str, fence_counters: &str) -> Result<Self, LockError> {
        for name in [locks, fence_counters] {
            let mut bytes = name.bytes();
            let starts_well = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
            let continues_well = bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !starts_well || !continues_well || name.len() > MAX_TABLE_NAME_BYTES {
                return Err(LockError::InvalidArgument(format!(
                    "{name:?} is not a table name: at most {MAX_TABLE_NAME_BYTES} letters, digits and _, the first no digit"
                )));
            }
        }
        if locks.eq_ignore_ascii_case(fence_counters) {
            return Err(LockError::InvalidArgument("locks and fence counters must be two tables".to_owned()));
        }
        Ok(Self { locks: locks.to_owned(), fence_counters: fence_counters.to_owned() })
    }

    /// Returns the statement on these tables.
    pub(crate) fn of(&self, statement: &Statement) -> Statement {
        let [locks, fence_counters] = [&self.locks, &self.fence_counters].map(|name| format!("\"{name}\""));
        statement.with_names(&[("{locks}", &locks), ("{fence_counters}", &fence_counters)])
    }

    /// Returns the grants that the statements need.
    pub fn required_grants(&self) -> Vec<Grant> {
        vec![
            Grant::on_table(&self.locks, &["SELECT", "INSERT", "UPDATE", "DELETE"]),
            // A counter is never deleted.
            Grant::on_table(&self.fence_counters, &["SELECT", "INSERT", "UPDATE"]),
        ]
    }
}

/// Returns the SQL that creates both tables if they do not exist, for a migration or for
/// [`crate::LockManager::setup_schema`].
///
/// It also revokes the right to delete counters from the role that runs it: a counter that restarts would
/// grant fences that others have already seen.
pub fn schema_sql(names: &TableNames) -> String {
    let TableNames { locks, fence_counters } = names;
    format!(
        r#"CREATE TABLE IF NOT EXISTS "{locks}" (
    key            text COLLATE "C" PRIMARY KEY,
    lock_id        text COLLATE "C" NOT NULL,
    expires_at_ms  bigint NOT NULL,
    acquired_at_ms bigint NOT NULL,
    fence          text COLLATE "C" NOT NULL,
    user_key       text NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS "idx_{locks}_lock_id" ON "{locks}" (lock_id);
CREATE INDEX IF NOT EXISTS "idx_{locks}_expires" ON "{locks}" (expires_at_ms);
COMMENT ON TABLE "{locks}" IS 'Locks that are held, or were and have expired. A row may be deleted once it has expired.';
COMMENT ON COLUMN "{locks}".key IS 'The key of the lock, shortened by a hash if it is too long.';
COMMENT ON COLUMN "{locks}".lock_id IS 'Identifies this grant; with it a client can release and extend the lock.';
COMMENT ON COLUMN "{locks}".expires_at_ms IS 'When the lease ends, by this server; live until 1,000 ms after it.';
COMMENT ON COLUMN "{locks}".acquired_at_ms IS 'When it was granted, by this server.';
COMMENT ON COLUMN "{locks}".fence IS 'The fence of this grant, fifteen digits.';
COMMENT ON COLUMN "{locks}".user_key IS 'The key as the caller wrote it, in NFC.';

-- Rows of this table are never deleted: a counter that restarts would give out fences that were seen before.
CREATE TABLE IF NOT EXISTS "{fence_counters}" (
    fence_key text COLLATE "C" PRIMARY KEY,
    fence     bigint NOT NULL DEFAULT 0,
    key_debug text
);
REVOKE DELETE, TRUNCATE ON "{fence_counters}" FROM PUBLIC, CURRENT_USER;
COMMENT ON TABLE "{fence_counters}" IS 'The last fence of each key. Rows must never be deleted or restored to an older state.';
COMMENT ON COLUMN "{fence_counters}".fence_key IS 'The prefix fence: and the key of the lock.';
COMMENT ON COLUMN "{fence_counters}".fence IS 'The last fence that was given out; 0 before the first.';
COMMENT ON COLUMN "{fence_counters}".key_debug IS 'The key as the caller wrote it, for diagnosis.';
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // L-15
    #[test]
    fn one_table_for_both_is_refused_whatever_its_case() {
        for (locks, counters) in [("locks", "locks"), ("Locks", "locks")] {
            assert!(matches!(TableNames::new(locks, counters), Err(LockError::InvalidArgument(_))));
        }
    }

    // L-15
    #[test]
    fn a_name_that_would_need_care_in_sql_is_refused() {
        let longest = "a".repeat(51);
        assert!(TableNames::new(&longest, "_B9").is_ok());
        for name in
            ["", "1a", "a-b", "a b", "a;drop table x", "a\"b", "schema.a", "é", "a\n", &"a".repeat(52)]
        {
            assert!(
                matches!(TableNames::new(name, "counters"), Err(LockError::InvalidArgument(_))),
                "{name:?}"
            );
            assert!(matches!(TableNames::new("locks", name), Err(LockError::InvalidArgument(_))), "{name:?}");
        }
    }

    #[test]
    fn the_names_of_indexes_are_never_cut_short() {
        let names = TableNames::new(&"a".repeat(51), "counters").expect("valid");
        let sql = schema_sql(&names);
        let longest = sql.split('"').skip(1).step_by(2).map(str::len).max();
        assert_eq!(longest, Some(63));
    }
}
