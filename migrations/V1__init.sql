-- The notification service's tables. Role and schema are created outside the migrations: this file holds only tables and
-- indexes, runs as the schema's owner, and lets search_path pick the schema (README.md beside it).
-- Ids compare by bytes (COLLATE "C"): they are not text in any language, and an index on them must not depend on the
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
COMMENT ON COLUMN records.notification_id IS 'The stream entry id, with ~n appended if that id belonged to another intent.';
COMMENT ON COLUMN records.notification_type IS 'A type of the catalogue.';
COMMENT ON COLUMN records.producer IS 'The producer of the intent.';
COMMENT ON COLUMN records.audience_kind IS 'user or admin_email.';
COMMENT ON COLUMN records.recipient_user_ids IS 'Sorted by bytes, without repeats; [] for admin_email.';
COMMENT ON COLUMN records.payload_json IS 'The payload in normal form.';
COMMENT ON COLUMN records.idempotency_key IS 'Chosen by the producer; unique with it for as long as the row lives.';
COMMENT ON COLUMN records.request_fingerprint IS 'v1: and the SHA-256 of the intent in normal form: distinguishes a duplicate from a conflict.';
COMMENT ON COLUMN records.request_id IS 'For observability only.';
COMMENT ON COLUMN records.trace_id IS 'For observability only.';
COMMENT ON COLUMN records.occurred_at IS 'When it happened, according to the producer.';
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
-- By channel first: the due routes of one channel are found without reading past the backlog of another (ADR 0005).
CREATE INDEX routes_due_idx ON routes (channel, next_attempt_at, notification_id, route_id)
    WHERE next_attempt_at IS NOT NULL;

COMMENT ON TABLE routes IS 'One recipient on one channel each, with its own attempts.';
COMMENT ON COLUMN routes.notification_id IS 'The record of the route.';
COMMENT ON COLUMN routes.route_id IS '<channel>:<recipient_ref>.';
COMMENT ON COLUMN routes.channel IS 'push or email.';
COMMENT ON COLUMN routes.recipient_ref IS 'user:<user_id>, email:<address> or, if there is no administrator, config:<notification_type>.';
COMMENT ON COLUMN routes.status IS 'pending, failed (will be retried), published, dead_letter or skipped.';
COMMENT ON COLUMN routes.attempt_count IS 'Failed attempts so far.';
COMMENT ON COLUMN routes.max_attempts IS 'This many failed attempts make a dead letter.';
COMMENT ON COLUMN routes.next_attempt_at IS 'Set exactly while the status is pending or failed.';
COMMENT ON COLUMN routes.resolved_email IS 'The address, for the e-mail channel, as it was at acceptance.';
COMMENT ON COLUMN routes.resolved_locale IS 'The recipient''s language, as it was at acceptance.';
COMMENT ON COLUMN routes.last_error_classification IS 'Of the last failed attempt, or why the route was skipped.';
COMMENT ON COLUMN routes.last_error_message IS 'Of the last failed attempt, for an operator.';
COMMENT ON COLUMN routes.last_error_at IS 'When the last attempt failed.';
COMMENT ON COLUMN routes.created_at IS 'When the intent was accepted.';
COMMENT ON COLUMN routes.updated_at IS 'The version: every change names the one it was decided on, and raises it.';
COMMENT ON COLUMN routes.published_at IS 'When the append was recorded here.';
COMMENT ON COLUMN routes.dead_lettered_at IS 'When the last attempt failed.';
COMMENT ON COLUMN routes.skipped_at IS 'When the route was skipped because it has no recipient.';
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

COMMENT ON TABLE dead_letters IS 'Routes whose last attempt failed, written in the transaction that recorded it.';
COMMENT ON COLUMN dead_letters.notification_id IS 'See routes.';
COMMENT ON COLUMN dead_letters.route_id IS 'See routes.';
COMMENT ON COLUMN dead_letters.channel IS 'See routes.';
COMMENT ON COLUMN dead_letters.recipient_ref IS 'See routes.';
COMMENT ON COLUMN dead_letters.final_attempt_count IS 'Number of failed attempts.';
COMMENT ON COLUMN dead_letters.max_attempts IS 'How many attempts were allowed.';
COMMENT ON COLUMN dead_letters.failure_classification IS 'Of the last attempt.';
COMMENT ON COLUMN dead_letters.failure_message IS 'Of the last attempt, for an operator.';
COMMENT ON COLUMN dead_letters.recovery_hint IS 'What an operator can do.';
COMMENT ON COLUMN dead_letters.created_at IS 'When the last attempt failed.';

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
CREATE INDEX malformed_intents_recorded_idx
    ON malformed_intents (recorded_at, stream, stream_entry_id, fields_fingerprint);

COMMENT ON TABLE malformed_intents IS 'Entries that were not accepted, with all their fields and the reason.';
COMMENT ON COLUMN malformed_intents.stream IS 'The stream from which it was read.';
COMMENT ON COLUMN malformed_intents.stream_entry_id IS 'Its id there.';
COMMENT ON COLUMN malformed_intents.fields_fingerprint IS 'SHA-256 of the raw fields: an entry read twice is one row, and a recreated stream may reuse an id.';
COMMENT ON COLUMN malformed_intents.notification_type IS 'As received if it is text of at most 255 bytes, else empty.';
COMMENT ON COLUMN malformed_intents.producer IS 'As received if it is text of at most 255 bytes, else empty.';
COMMENT ON COLUMN malformed_intents.idempotency_key IS 'As received if it is text of at most 255 bytes, else empty.';
COMMENT ON COLUMN malformed_intents.failure_code IS 'The first rule that it violates.';
COMMENT ON COLUMN malformed_intents.failure_message IS 'A description for an operator.';
COMMENT ON COLUMN malformed_intents.raw_fields IS 'An array of [name, value] in the order received; {"base64": …} for what is not text.';
COMMENT ON COLUMN malformed_intents.recorded_at IS 'When it was rejected; retention counts from here.';

CREATE TABLE intake (
    stream        text COLLATE "C" PRIMARY KEY,
    fence         bigint      NOT NULL,
    last_entry_id text        NOT NULL,
    updated_at    timestamptz NOT NULL
);

COMMENT ON TABLE intake IS 'The durable checkpoint of each intents stream, moved in the transaction that writes the outcomes.';
COMMENT ON COLUMN intake.stream IS 'The stream.';
COMMENT ON COLUMN intake.fence IS 'The fence of the term that moved it last; a lower one is refused.';
COMMENT ON COLUMN intake.last_entry_id IS 'Everything up to and including this entry has its outcome.';
COMMENT ON COLUMN intake.updated_at IS 'When the checkpoint moved last.';

-- One row: a schema serves one intents stream (ADR 0019).
CREATE TABLE installation (
    only_row       boolean     PRIMARY KEY DEFAULT true,
    id             text COLLATE "C" NOT NULL,
    intents_stream text COLLATE "C" NOT NULL,
    created_at     timestamptz NOT NULL,
    CONSTRAINT installation_only_row_check CHECK (only_row)
);

COMMENT ON TABLE installation IS 'The installation that this schema belongs to. Written at the first start, never changed.';
COMMENT ON COLUMN installation.only_row IS 'Always true: there is no second row.';
COMMENT ON COLUMN installation.id IS 'A random id. Redis holds it for the stream, so that no other schema serves the same stream.';
COMMENT ON COLUMN installation.intents_stream IS 'The intents stream that this schema serves; a start with another one is refused.';
COMMENT ON COLUMN installation.created_at IS 'When the service first started on this schema.';

CREATE TABLE outbound_streams (
    stream            text COLLATE "C" PRIMARY KEY,
    server_run_id     text        NOT NULL,
    replication_id    text        NOT NULL,
    last_generated_id text        NOT NULL,
    seen_at           timestamptz NOT NULL
);

COMMENT ON TABLE outbound_streams IS 'The last observation of each outbound stream: another server or a lower id means that Redis may have lost entries.';
COMMENT ON COLUMN outbound_streams.stream IS 'The stream.';
COMMENT ON COLUMN outbound_streams.server_run_id IS 'run_id of the Redis server that had it: another one after each start of the server.';
COMMENT ON COLUMN outbound_streams.replication_id IS 'master_replid of that server: another one after a failover.';
COMMENT ON COLUMN outbound_streams.last_generated_id IS 'The last id that the stream had generated; 0-0 if it was absent.';
COMMENT ON COLUMN outbound_streams.seen_at IS 'When it was observed; entries published shortly before are compared after a change of server.';

CREATE TABLE replicas (
    replica      text COLLATE "C" PRIMARY KEY,
    version      text        NOT NULL,
    started_at   timestamptz NOT NULL,
    seen_at      timestamptz NOT NULL,
    leader_of    text[]      NOT NULL,
    workers      jsonb       NOT NULL,
    step_down_at timestamptz NULL
);

COMMENT ON TABLE replicas IS 'The replicas that run, as each reports itself: every 10 s, and when something changes. A row not seen for an hour is removed.';
COMMENT ON COLUMN replicas.replica IS 'The name of the replica (NOTIFICATION_REPLICA_ID).';
COMMENT ON COLUMN replicas.version IS 'The version of the service that it runs.';
COMMENT ON COLUMN replicas.started_at IS 'When it started, by its own clock.';
COMMENT ON COLUMN replicas.seen_at IS 'When it reported itself last, by the clock of this database.';
COMMENT ON COLUMN replicas.leader_of IS 'The workers that run on one replica at a time and run on this one.';
COMMENT ON COLUMN replicas.workers IS 'An object for each worker: its name, its last pass, and what blocks it since when.';
COMMENT ON COLUMN replicas.step_down_at IS 'When an operator asked it to step down.';

CREATE TABLE activity (
    minute        timestamptz NOT NULL,
    replica       text COLLATE "C" NOT NULL,
    accepted      bigint      NOT NULL,
    duplicates    bigint      NOT NULL,
    conflicts     bigint      NOT NULL,
    malformed     bigint      NOT NULL,
    published     bigint      NOT NULL,
    failed        bigint      NOT NULL,
    dead_lettered bigint      NOT NULL,
    PRIMARY KEY (minute, replica)
);

COMMENT ON TABLE activity IS 'What each replica did, by the minute in which it reported it; reported every 10 s, kept for 24 hours. For charts: counts that were not reported when a process ended are missing.';
COMMENT ON COLUMN activity.minute IS 'The beginning of the minute, by the clock of this database.';
COMMENT ON COLUMN activity.replica IS 'See replicas.';
COMMENT ON COLUMN activity.accepted IS 'Intents that were accepted.';
COMMENT ON COLUMN activity.duplicates IS 'Intents that had been accepted before.';
COMMENT ON COLUMN activity.conflicts IS 'Other intents under an idempotency key that is taken.';
COMMENT ON COLUMN activity.malformed IS 'Malformed intents.';
COMMENT ON COLUMN activity.published IS 'Routes that were published.';
COMMENT ON COLUMN activity.failed IS 'Attempts that failed and are followed by another one.';
COMMENT ON COLUMN activity.dead_lettered IS 'Routes that became dead letters.';
