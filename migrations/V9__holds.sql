-- What operators hold back from publishing, and the routes that are kept (ADR 0058).

CREATE TABLE holds (
    scope       text        COLLATE "C" NOT NULL,
    name        text        COLLATE "C" NOT NULL,
    since       timestamptz NOT NULL,
    actor       text        NOT NULL,
    reason      text        NOT NULL,
    released_at timestamptz NULL,
    CONSTRAINT holds_pkey PRIMARY KEY (scope, name),
    CONSTRAINT holds_scope_check CHECK (scope IN ('channel', 'type', 'producer'))
);

COMMENT ON TABLE holds IS 'What an operator holds: routes of a channel, type or producer are not published before it is released.';
COMMENT ON COLUMN holds.scope IS 'channel, type or producer.';
COMMENT ON COLUMN holds.name IS 'The channel, the notification type or the producer.';
COMMENT ON COLUMN holds.since IS 'When the operator made the hold, by the clock of this database.';
COMMENT ON COLUMN holds.actor IS 'Who made it: the name of an operator''s token, or user@host.';
COMMENT ON COLUMN holds.reason IS 'Why, in the operator''s words.';
COMMENT ON COLUMN holds.released_at IS 'When an operator released it. The row goes when every route that it kept is due again.';

CREATE TABLE held_routes (
    notification_id text        COLLATE "C" NOT NULL,
    route_id        text        COLLATE "C" NOT NULL,
    scope           text        COLLATE "C" NOT NULL,
    name            text        COLLATE "C" NOT NULL,
    due_at          timestamptz NOT NULL,
    CONSTRAINT held_routes_pkey PRIMARY KEY (notification_id, route_id),
    CONSTRAINT held_routes_route_fkey FOREIGN KEY (notification_id, route_id) REFERENCES routes ON DELETE CASCADE,
    CONSTRAINT held_routes_hold_fkey FOREIGN KEY (scope, name) REFERENCES holds
);
CREATE INDEX held_routes_hold_idx ON held_routes (scope, name, due_at, notification_id, route_id);

COMMENT ON TABLE held_routes IS 'The routes that a hold keeps. Their next_attempt_at is infinity, so no publisher lists them as due.';
COMMENT ON COLUMN held_routes.notification_id IS 'See routes.';
COMMENT ON COLUMN held_routes.route_id IS 'See routes.';
COMMENT ON COLUMN held_routes.scope IS 'See holds.';
COMMENT ON COLUMN held_routes.name IS 'See holds.';
COMMENT ON COLUMN held_routes.due_at IS 'When the route was due; after the release the routes that were due first go first.';
