-- The notification service's tables. Role and schema are made outside the migrations: this file holds only tables and
-- indexes, runs as the schema's owner, and lets search_path pick the schema (README.md beside it).
-- Ids compare by bytes (COLLATE "C"): they are no words of any language, and an index on them must not depend on the
-- operating system's dictionaries.

CREATE TABLE records (
    notification_id        text COLLATE "C" PRIMARY KEY,
    notification_type      text        NOT NULL,
    producer               text COLLATE "C" NOT NULL,
    audience_kind          text        NOT NULL,
    recipient_user_ids     jsonb       NOT NULL DEFAULT '[]',
    payload_json           text        NOT NULL,
    idempotency_key        text COLLATE "C" NOT NULL,
    request_fingerprint    text        NOT NULL,
    request_id             text        NOT NULL DEFAULT '',
    trace_id               text        NOT NULL DEFAULT '',
    occurred_at            timestamptz NOT NULL,
    accepted_at            timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    idempotency_expires_at timestamptz NOT NULL,
    CONSTRAINT records_idempotency_unique UNIQUE (producer, idempotency_key)
);
CREATE INDEX records_listing_idx ON records (accepted_at DESC, notification_id DESC);

COMMENT ON TABLE records IS 'One accepted intent each. The row is the reservation of its idempotency key.';
COMMENT ON COLUMN records.notification_id IS 'The stream entry id, with ~n behind it if that id belonged to another intent.';
COMMENT ON COLUMN records.notification_type IS 'A type of the catalogue.';
COMMENT ON COLUMN records.producer IS 'Who sent the intent.';
COMMENT ON COLUMN records.audience_kind IS 'user or admin_email.';
COMMENT ON COLUMN records.recipient_user_ids IS 'Sorted by bytes, without repeats; [] for admin_email.';
COMMENT ON COLUMN records.payload_json IS 'The payload in normal form.';
COMMENT ON COLUMN records.idempotency_key IS 'Chosen by the producer; unique with it for as long as the row lives.';
COMMENT ON COLUMN records.request_fingerprint IS 'v1: and the SHA-256 of the intent in normal form: tells a duplicate from a conflict.';
COMMENT ON COLUMN records.request_id IS 'For observability only.';
COMMENT ON COLUMN records.trace_id IS 'For observability only.';
COMMENT ON COLUMN records.occurred_at IS 'When the producer says that it happened.';
COMMENT ON COLUMN records.accepted_at IS 'When the service took responsibility; retention counts from here.';
COMMENT ON COLUMN records.updated_at IS 'Equal to accepted_at: a record does not change.';
COMMENT ON COLUMN records.idempotency_expires_at IS 'accepted_at plus NOTIFICATION_IDEMPOTENCY_TTL at that time; reported, not enforced.';

-- Every route is updated at least once, from pending to a terminal status: a third of each page is left for that.
CREATE TABLE routes (
    notification_id           text COLLATE "C" NOT NULL REFERENCES records ON DELETE CASCADE,
    route_id                  text COLLATE "C" NOT NULL,
    channel                   text COLLATE "C" NOT NULL,
    recipient_ref             text        NOT NULL,
    status                    text COLLATE "C" NOT NULL,
    attempt_count             int         NOT NULL DEFAULT 0,
    max_attempts              int         NOT NULL,
    next_attempt_at           timestamptz NULL,
    resolved_email            text        NOT NULL DEFAULT '',
    resolved_locale           text        NOT NULL DEFAULT '',
    last_error_classification text        NOT NULL DEFAULT '',
    last_error_message        text        NOT NULL DEFAULT '',
    last_error_at             timestamptz NULL,
    created_at                timestamptz NOT NULL,
    updated_at                timestamptz NOT NULL,
    published_at              timestamptz NULL,
    dead_lettered_at          timestamptz NULL,
    skipped_at                timestamptz NULL,
    published_entry_id        text        NOT NULL DEFAULT '',
    PRIMARY KEY (notification_id, route_id),
    CONSTRAINT routes_channel_check CHECK (channel IN ('push', 'email')),
    CONSTRAINT routes_status_check CHECK (status IN ('pending', 'failed', 'published', 'dead_letter', 'skipped')),
    CONSTRAINT routes_schedule_check CHECK ((status IN ('pending', 'failed')) = (next_attempt_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX routes_due_idx ON routes (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
-- One channel's backlog must not stand between another channel and its due routes (ADR 0005).
CREATE INDEX routes_due_by_channel_idx ON routes (channel, next_attempt_at, notification_id, route_id)
    WHERE next_attempt_at IS NOT NULL;

COMMENT ON TABLE routes IS 'One recipient on one channel each, with its own retry budget.';
COMMENT ON COLUMN routes.notification_id IS 'Its record.';
COMMENT ON COLUMN routes.route_id IS '<channel>:<recipient_ref>.';
COMMENT ON COLUMN routes.channel IS 'push or email.';
COMMENT ON COLUMN routes.recipient_ref IS 'user:<user_id>, email:<address> or, if there is no administrator, config:<notification_type>.';
COMMENT ON COLUMN routes.status IS 'pending, failed (will be tried again), published, dead_letter or skipped.';
COMMENT ON COLUMN routes.attempt_count IS 'Failed attempts so far.';
COMMENT ON COLUMN routes.max_attempts IS 'This many failed attempts make a dead letter.';
COMMENT ON COLUMN routes.next_attempt_at IS 'Set exactly while the status is pending or failed.';
COMMENT ON COLUMN routes.resolved_email IS 'The address, for the e-mail channel, as it was at acceptance.';
COMMENT ON COLUMN routes.resolved_locale IS 'The recipient''s language, as it was at acceptance.';
COMMENT ON COLUMN routes.last_error_classification IS 'Of the last failed attempt, or why the route was skipped.';
COMMENT ON COLUMN routes.last_error_message IS 'Of the last failed attempt, for a person.';
COMMENT ON COLUMN routes.last_error_at IS 'When the last attempt failed.';
COMMENT ON COLUMN routes.created_at IS 'When the intent was accepted.';
COMMENT ON COLUMN routes.updated_at IS 'The version: every change names the one it was decided on, and raises it.';
COMMENT ON COLUMN routes.published_at IS 'When the append was written down here.';
COMMENT ON COLUMN routes.dead_lettered_at IS 'When the budget was spent.';
COMMENT ON COLUMN routes.skipped_at IS 'When it was decided that there is nobody to reach.';
COMMENT ON COLUMN routes.published_entry_id IS 'The id of its entry in the outbound stream.';

CREATE TABLE dead_letters (
    notification_id        text COLLATE "C" NOT NULL,
    route_id               text COLLATE "C" NOT NULL,
    channel                text        NOT NULL,
    recipient_ref          text        NOT NULL,
    final_attempt_count    int         NOT NULL,
    max_attempts           int         NOT NULL,
    failure_classification text        NOT NULL,
    failure_message        text        NOT NULL,
    recovery_hint          text        NOT NULL,
    created_at             timestamptz NOT NULL,
    PRIMARY KEY (notification_id, route_id),
    FOREIGN KEY (notification_id, route_id) REFERENCES routes ON DELETE CASCADE
);

COMMENT ON TABLE dead_letters IS 'The routes that were given up, written in the transaction that gave them up.';
COMMENT ON COLUMN dead_letters.notification_id IS 'See routes.';
COMMENT ON COLUMN dead_letters.route_id IS 'See routes.';
COMMENT ON COLUMN dead_letters.channel IS 'See routes.';
COMMENT ON COLUMN dead_letters.recipient_ref IS 'See routes.';
COMMENT ON COLUMN dead_letters.final_attempt_count IS 'Failed attempts when the budget was spent.';
COMMENT ON COLUMN dead_letters.max_attempts IS 'The budget.';
COMMENT ON COLUMN dead_letters.failure_classification IS 'Of the last attempt.';
COMMENT ON COLUMN dead_letters.failure_message IS 'Of the last attempt, for a person.';
COMMENT ON COLUMN dead_letters.recovery_hint IS 'What an operator can do.';
COMMENT ON COLUMN dead_letters.created_at IS 'When the budget was spent.';

CREATE TABLE malformed_intents (
    stream             text COLLATE "C" NOT NULL,
    stream_entry_id    text COLLATE "C" NOT NULL,
    fields_fingerprint text COLLATE "C" NOT NULL,
    notification_type  text        NOT NULL DEFAULT '',
    producer           text        NOT NULL DEFAULT '',
    idempotency_key    text        NOT NULL DEFAULT '',
    failure_code       text        NOT NULL,
    failure_message    text        NOT NULL,
    raw_fields         jsonb       NOT NULL,
    recorded_at        timestamptz NOT NULL,
    PRIMARY KEY (stream, stream_entry_id, fields_fingerprint)
);
CREATE INDEX malformed_intents_recorded_idx ON malformed_intents (recorded_at);

COMMENT ON TABLE malformed_intents IS 'The entries that were not accepted, whole, with the reason.';
COMMENT ON COLUMN malformed_intents.stream IS 'The stream it came by.';
COMMENT ON COLUMN malformed_intents.stream_entry_id IS 'Its id there.';
COMMENT ON COLUMN malformed_intents.fields_fingerprint IS 'SHA-256 of the raw fields: an entry read twice is one row, a stream made anew may reuse an id.';
COMMENT ON COLUMN malformed_intents.notification_type IS 'As received, if it is text of at most 255 bytes; else empty.';
COMMENT ON COLUMN malformed_intents.producer IS 'As received, if it is text of at most 255 bytes; else empty.';
COMMENT ON COLUMN malformed_intents.idempotency_key IS 'As received, if it is text of at most 255 bytes; else empty.';
COMMENT ON COLUMN malformed_intents.failure_code IS 'The first rule that it broke.';
COMMENT ON COLUMN malformed_intents.failure_message IS 'What was found, for a person.';
COMMENT ON COLUMN malformed_intents.raw_fields IS 'An array of [name, value] in the order received; {"base64": …} for what is not text.';
COMMENT ON COLUMN malformed_intents.recorded_at IS 'When it was decided; retention counts from here.';

CREATE TABLE intake (
    stream        text COLLATE "C" PRIMARY KEY,
    fence         bigint      NOT NULL,
    last_entry_id text        NOT NULL,
    updated_at    timestamptz NOT NULL
);

COMMENT ON TABLE intake IS 'How far each intents stream has been read: moved in the transaction that writes the outcomes.';
COMMENT ON COLUMN intake.stream IS 'The stream.';
COMMENT ON COLUMN intake.fence IS 'The fence of the consumer that moved it last; an older one is refused.';
COMMENT ON COLUMN intake.last_entry_id IS 'Everything up to and including this entry has its outcome.';
COMMENT ON COLUMN intake.updated_at IS 'When it moved last.';
