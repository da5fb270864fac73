-- Locks and their fences: who reads the intents stream, who sweeps. The crate `lock` explains them; below this head the
-- file is what its schema_sql() gives for the table names locks and fence_counters, and a test compares the two.

CREATE TABLE IF NOT EXISTS "locks" (
    key            text COLLATE "C" PRIMARY KEY,
    lock_id        text COLLATE "C" NOT NULL,
    expires_at_ms  bigint NOT NULL,
    acquired_at_ms bigint NOT NULL,
    fence          text COLLATE "C" NOT NULL,
    user_key       text NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS "idx_locks_lock_id" ON "locks" (lock_id);
CREATE INDEX IF NOT EXISTS "idx_locks_expires" ON "locks" (expires_at_ms);
COMMENT ON TABLE "locks" IS 'Locks that are held, or were and have expired. A row may be deleted once it has expired.';
COMMENT ON COLUMN "locks".key IS 'The key of the lock, shortened by a hash if it is too long.';
COMMENT ON COLUMN "locks".lock_id IS 'Names this grant; whoever knows it can release and extend the lock.';
COMMENT ON COLUMN "locks".expires_at_ms IS 'When the lease ends, by this server; live until 1,000 ms after it.';
COMMENT ON COLUMN "locks".acquired_at_ms IS 'When it was granted, by this server.';
COMMENT ON COLUMN "locks".fence IS 'The fence of this grant, fifteen digits.';
COMMENT ON COLUMN "locks".user_key IS 'The key as the caller wrote it, in NFC.';

-- Rows of this table live for ever: a counter that starts over would give out fences that were seen before.
CREATE TABLE IF NOT EXISTS "fence_counters" (
    fence_key text COLLATE "C" PRIMARY KEY,
    fence     bigint NOT NULL DEFAULT 0,
    key_debug text
);
REVOKE DELETE, TRUNCATE ON "fence_counters" FROM PUBLIC, CURRENT_USER;
COMMENT ON TABLE "fence_counters" IS 'The last fence of each key. Rows must never be deleted or set back.';
COMMENT ON COLUMN "fence_counters".fence_key IS 'fence: and the key of the lock.';
COMMENT ON COLUMN "fence_counters".fence IS 'The last fence that was given out; 0 before the first.';
COMMENT ON COLUMN "fence_counters".key_debug IS 'The key as the caller wrote it; for people only.';
