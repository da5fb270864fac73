-- Who is signed in to the console (ADR 0039).

CREATE TABLE console_sessions (
    id_sha256    bytea       PRIMARY KEY,
    token_sha256 bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    CONSTRAINT console_sessions_hashes_check CHECK (octet_length(id_sha256) = 32 AND octet_length(token_sha256) = 32)
);
CREATE INDEX console_sessions_expires_idx ON console_sessions (expires_at);

COMMENT ON TABLE console_sessions IS 'The sessions of the console, one row each. Deleting a row ends its session on every replica.';
COMMENT ON COLUMN console_sessions.id_sha256 IS 'The SHA-256 of the id in the browser''s cookie; the id itself is nowhere in the database.';
COMMENT ON COLUMN console_sessions.token_sha256 IS 'The SHA-256 of the operator''s token. The session counts while the tokens file has it with the role operator.';
COMMENT ON COLUMN console_sessions.created_at IS 'When the operator signed in, by the clock of this database.';
COMMENT ON COLUMN console_sessions.expires_at IS 'When the session ends by itself, 8 hours later, by the clock of this database; retention deletes the row after that.';
