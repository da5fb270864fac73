-- What the state of the service is derived from: an orderly stop, and the activity by channel, type and producer (ADR 0061).

ALTER TABLE replicas ADD COLUMN stopped_at timestamptz NULL;
COMMENT ON COLUMN replicas.stopped_at IS 'When it stopped in order: equal to seen_at, unless a former release has reported it since.';

CREATE TABLE activity_parts (
    minute            timestamptz NOT NULL,
    replica           text        COLLATE "C" NOT NULL,
    scope             text        COLLATE "C" NOT NULL,
    name              text        COLLATE "C" NOT NULL,
    notification_type text        COLLATE "C" NOT NULL,
    accepted          bigint      NOT NULL,
    duplicates        bigint      NOT NULL,
    conflicts         bigint      NOT NULL,
    malformed         bigint      NOT NULL,
    published         bigint      NOT NULL,
    failed            bigint      NOT NULL,
    dead_lettered     bigint      NOT NULL,
    delays            bigint[]    NOT NULL,
    CONSTRAINT activity_parts_pkey PRIMARY KEY (minute, replica, scope, name, notification_type),
    CONSTRAINT activity_parts_scope_check CHECK (scope IN ('channel', 'producer'))
);

COMMENT ON TABLE activity_parts IS 'What each replica did by channel and notification type, and for each producer, by the minute in which it reported it; kept for 24 hours like activity.';
COMMENT ON COLUMN activity_parts.minute IS 'See activity.';
COMMENT ON COLUMN activity_parts.replica IS 'See replicas.';
COMMENT ON COLUMN activity_parts.scope IS 'channel (routes) or producer (intents).';
COMMENT ON COLUMN activity_parts.name IS 'The channel or the producer; empty for all producers beyond the 50 unknown ones of a minute.';
COMMENT ON COLUMN activity_parts.notification_type IS 'The type of the routes; empty for a producer.';
COMMENT ON COLUMN activity_parts.accepted IS 'See activity; 0 for routes.';
COMMENT ON COLUMN activity_parts.duplicates IS 'See activity; 0 for routes.';
COMMENT ON COLUMN activity_parts.conflicts IS 'See activity; 0 for routes.';
COMMENT ON COLUMN activity_parts.malformed IS 'See activity; 0 for routes.';
COMMENT ON COLUMN activity_parts.published IS 'Entries that were appended; 0 for a producer.';
COMMENT ON COLUMN activity_parts.failed IS 'See activity; 0 for a producer.';
COMMENT ON COLUMN activity_parts.dead_lettered IS 'See activity; 0 for a producer.';
COMMENT ON COLUMN activity_parts.delays IS 'Published routes by the delay from acceptance to append: up to 10, 25, 50, 100, 250, 500 ms, 1, 2.5, 10, 60, 600 s, and longer.';
