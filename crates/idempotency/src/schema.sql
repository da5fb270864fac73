CREATE TABLE IF NOT EXISTS idempotency_keys (
    scope            text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    token            text COLLATE "C" NOT NULL,
    fingerprint      text COLLATE "C" NOT NULL,
    response_status  int         NULL,
    response_headers bytea       NULL,
    response_body    bytea       NULL,
    expires_at       timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (scope, key),
    CONSTRAINT idempotency_keys_state_check CHECK (
        (state = 'pending'
            AND response_status IS NULL AND response_headers IS NULL AND response_body IS NULL)
        OR (state = 'completed'
            AND response_status IS NOT NULL AND response_status BETWEEN 100 AND 999
            AND response_headers IS NOT NULL AND response_body IS NOT NULL)
    )
);
CREATE INDEX IF NOT EXISTS idempotency_keys_expires_at_idx ON idempotency_keys (expires_at);

COMMENT ON TABLE idempotency_keys IS 'One row for each idempotency key that is being processed or has an answer. An expired row may be deleted.';
COMMENT ON COLUMN idempotency_keys.scope IS 'Whom the key belongs to, such as an endpoint and an authenticated client: equal keys of two scopes are two keys.';
COMMENT ON COLUMN idempotency_keys.key IS 'The idempotency key, chosen by the client.';
COMMENT ON COLUMN idempotency_keys.state IS 'pending while the request is processed, completed once its answer is stored.';
COMMENT ON COLUMN idempotency_keys.token IS 'Identifies the claim: only the process that holds this token may change the row before it expires.';
COMMENT ON COLUMN idempotency_keys.fingerprint IS 'Tells a repeat of the request from another request with the same key.';
COMMENT ON COLUMN idempotency_keys.response_status IS 'The HTTP status of the stored answer; NULL while pending.';
COMMENT ON COLUMN idempotency_keys.response_headers IS 'The headers of the stored answer, as bytes; NULL while pending.';
COMMENT ON COLUMN idempotency_keys.response_body IS 'The body of the stored answer, as bytes; NULL while pending.';
COMMENT ON COLUMN idempotency_keys.expires_at IS 'When the key is free again, by the clock of this server: the end of the lock TTL while pending, of the retention TTL once completed.';
COMMENT ON COLUMN idempotency_keys.created_at IS 'When the key was claimed, by the clock of this server.';
