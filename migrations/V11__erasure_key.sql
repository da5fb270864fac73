-- The key under which ids of erased users are hashed (ADR 0064).

ALTER TABLE installation ADD COLUMN erasure_key bytea NULL;

COMMENT ON COLUMN installation.erasure_key IS 'A random key for the hashes of erased users'' ids, made by the first erasure or its plan. Deleting it makes the hashes meaningless.';
