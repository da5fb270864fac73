-- What became of the intents with a producer's key (ADR 0055). By bytes: a search for equality must not depend on the operating system's
-- dictionaries.

CREATE INDEX malformed_intents_key_idx
    ON malformed_intents (producer COLLATE "C", idempotency_key COLLATE "C", recorded_at);
