//! Setup of a table: creation, takeover of a table of the original, and its indexes.

mod indexes;
mod tables;

use tokio::time::timeout;

use crate::support::{BOUND, Db};

/// A table of the original, in a database with a linguistic sort order, with some rows.
const ORIGINAL: &str = r#"
    CREATE TABLE test.kv (
        key TEXT COLLATE "en-US-x-icu" PRIMARY KEY, value JSONB NOT NULL,
        created_at TIMESTAMPTZ NOT NULL DEFAULT now(), updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    CREATE INDEX idx_kv_gin ON test.kv USING GIN (value jsonb_path_ops);
    ALTER TABLE test.kv OWNER TO svc;
    INSERT INTO test.kv (key, value, created_at, updated_at)
        SELECT k, jsonb_build_object('status', 'pending', 'n', 1), '2020-01-01Z', '2021-01-01Z'
        FROM unnest(ARRAY['a', 'B', 'b', 'A', 'a_b/1', 'aXb/1', 'ä']) AS k;"#;

/// Ids, files and definitions of the table and its indexes: any change alters them.
const TRACE: &str = "
    SELECT string_agg(concat_ws(' ', c.oid, c.relfilenode, c.relname, c.xmin, pg_get_indexdef(c.oid)), E'\n' ORDER BY c.relname)
    FROM pg_class c WHERE c.relnamespace = 'test'::regnamespace";

async fn index_count(db: &Db) -> i64 {
    db.value("SELECT count(*) FROM pg_index WHERE indrelid = 'test.kv'::regclass").await
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(BOUND, work).await.expect("in time")
}
