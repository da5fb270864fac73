-- What tells a loss in Redis: the server of the intents stream beside its checkpoint, comparisons of the outbound streams that are
-- repeated, and the streams that replicas publish to (ADR 0045).

ALTER TABLE intake ADD COLUMN server_run_id text NULL;
ALTER TABLE intake ADD COLUMN replication_id text NULL;

ALTER TABLE intake ADD COLUMN last_entry_fingerprint text NULL;

COMMENT ON COLUMN intake.server_run_id IS 'run_id of the Redis server that had the stream when intake last resumed; NULL before that is known.';
COMMENT ON COLUMN intake.replication_id IS 'master_replid of that server.';
COMMENT ON COLUMN intake.last_entry_fingerprint IS 'The last processed entry: its id, a space and the fingerprint of its fields. A former release moves last_entry_id without it, so it counts only if the ids are equal.';

ALTER TABLE outbound_streams ADD COLUMN compare_again_since timestamptz NULL;

COMMENT ON COLUMN outbound_streams.compare_again_since IS 'The stream is to be compared once more with the routes published from shortly before this time on; NULL when that is done.';

CREATE TABLE outbound_names (
    channel text        COLLATE "C" NOT NULL,
    stream  text        COLLATE "C" NOT NULL,
    used_at timestamptz NOT NULL,
    CONSTRAINT outbound_names_pkey PRIMARY KEY (channel, stream)
);

COMMENT ON TABLE outbound_names IS 'The outbound streams that replicas publish to. Routes do not say which stream has their entry: a channel that had two streams within the compared time is not compared.';
COMMENT ON COLUMN outbound_names.channel IS 'The channel.';
COMMENT ON COLUMN outbound_names.stream IS 'A stream that a replica is or was configured to publish the channel''s routes to.';
COMMENT ON COLUMN outbound_names.used_at IS 'When a replica last used it, by the clock of this database, accurate to a minute.';
