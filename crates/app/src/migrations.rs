//! The migrations of the service: its own tables from `migrations/` at the top of the repository, and the
//! tables of other crates, numbered here into one history.

use std::borrow::Cow;

use domain::ports::StoreError;
use lock::{TableNames, schema_sql};
use pg::{Dsn, Migration};
use state::TableName;

/// All migrations in order.
pub fn all() -> Vec<Migration> {
    vec![
        service_tables(1, "init", include_str!("../../../migrations/V1__init.sql")),
        Migration { version: 2, name: "locks", sql: Cow::Owned(schema_sql(&TableNames::default())) },
        Migration { version: 3, name: "idempotency_keys", sql: idempotency::schema_sql().to_owned().into() },
        Migration { version: 4, name: "documents", sql: Cow::Owned(documents_sql()) },
        service_tables(5, "search", include_str!("../../../migrations/V5__search.sql")),
        service_tables(6, "console_sessions", include_str!("../../../migrations/V6__console_sessions.sql")),
        service_tables(7, "redis_losses", include_str!("../../../migrations/V7__redis_losses.sql")),
        service_tables(8, "malformed_by_key", include_str!("../../../migrations/V8__malformed_by_key.sql")),
        service_tables(9, "holds", include_str!("../../../migrations/V9__holds.sql")),
        service_tables(10, "resends", include_str!("../../../migrations/V10__resends.sql")),
        service_tables(11, "erasure_key", include_str!("../../../migrations/V11__erasure_key.sql")),
        service_tables(12, "activity_parts", include_str!("../../../migrations/V12__activity_parts.sql")),
        service_tables(
            13,
            "resubmitted_intents",
            include_str!("../../../migrations/V13__resubmitted_intents.sql"),
        ),
        service_tables(14, "failed_attempts", include_str!("../../../migrations/V14__failed_attempts.sql")),
    ]
}

/// The tables of users' documents and of receipts. An existing `kv` stays unchanged, because the state store
/// may have created it if it was started on this schema first.
fn documents_sql() -> String {
    let (kv, receipts) = (TableName::default(), store_postgres::receipts_table());
    format!(
        "DO $documents$ BEGIN
IF to_regclass(format('%I.%I', current_schema(), '{kv}')) IS NULL THEN
{}END IF;
END $documents$;
{}",
        state::schema_sql(&kv),
        state::schema_sql(&receipts)
    )
}

fn service_tables(version: u32, name: &'static str, sql: &'static str) -> Migration {
    Migration { version, name, sql: Cow::Borrowed(sql) }
}

/// Applies the migrations that the database lacks, and returns their number.
pub async fn migrate(dsn: &Dsn) -> Result<usize, StoreError> {
    store_postgres::migrate(dsn, &all()).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use sha2::{Digest, Sha256};

    use super::*;

    /// The SHA-256 of every migration that a release contains, in order.
    const RELEASED: [&str; 6] = [
        "9f8fe9be4c69cb73b432e9dd4486f8ac90f278453767f169bb147add09b09da7",
        "f9dcff12da190bfb7b836e74544254d12c3f1ab2c42d0c35e91914bebc89d285",
        "15c462bd6796f71f7c85ac826f0b02ddbc485734831b859f4c1ec38249cdda0c",
        "273ffe693b267ca4b3c1ede3267b80fa270055150e51b0322b794bd16e012ef3",
        "9ca4d77022d8ebd74d9b9663a5460e3af1236396bff0392a2db117d5ae113926",
        "b08368bfd5d1513ba39ee412143c140cb1092426160e4bce8307dd6d0b280ae7",
    ];

    #[test]
    fn a_released_migration_never_changes() {
        for (migration, released) in all().iter().zip(RELEASED) {
            let found = hex::encode(Sha256::digest(migration.sql.as_bytes()));
            let (version, name) = (migration.version, migration.name);
            assert_eq!(found, released, "V{version} ({name}) is released: write a new one");
        }
    }

    #[test]
    fn versions_count_up_from_one() {
        let versions: Vec<u32> = all().iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=versions.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn every_file_of_the_folder_is_a_migration_under_its_own_number() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
        let entries = fs::read_dir(folder).expect("the folder is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let written: BTreeMap<String, String> = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
            .map(|path| {
                let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                (name, fs::read_to_string(&path).expect("a text"))
            })
            .collect();
        let composed: BTreeMap<String, String> = all()
            .into_iter()
            .filter(|migration| matches!(migration.sql, Cow::Borrowed(_)))
            .map(|migration| {
                (format!("V{}__{}", migration.version, migration.name), migration.sql.into_owned())
            })
            .collect();
        assert_eq!(written, composed);
    }
}
