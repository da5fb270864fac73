//! The boundaries at which processes are killed: before a request of a protocol reaches its server, or after
//! the server has carried it out and before the response is there.

use std::fmt;

use harness::{Proxy, Trigger};

/// The protocols of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    /// Accepting intents of the stream.
    Accept,
    /// Appending routes to the outbound streams.
    Publish,
    /// Marking routes as published.
    Complete,
    /// Deleting old records.
    Retain,
    /// Winning and keeping the leadership of the intake.
    Elect,
    /// Moving the events of an outbox to the intents stream.
    Relay,
    /// Accepting intents by HTTP.
    Http,
    /// Replaying dead letters.
    Replay,
    /// Holding and releasing routes.
    Hold,
    /// Sending published routes again.
    Resend,
}

/// The side of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Before,
    After,
}

/// The way to the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The work of the clients leads to it, or time.
    Work,
    /// Only routes that nobody publishes and a scan finds lead to it.
    Scan,
    /// Only the end of a leader leads to it.
    Campaign,
}

/// The request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// A statement whose text contains this.
    Statement(&'static str),
    /// A request to Redis that contains this.
    Redis(&'static str),
}

/// A boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Boundary {
    pub(crate) protocol: Protocol,
    pub(crate) side: Side,
    /// The request in words.
    pub(crate) step: &'static str,
    pub(crate) way: Way,
    request: Request,
}

impl Boundary {
    /// Holds the first request of this kind on its way through the proxies of a process.
    pub(crate) fn arm(&self, redis: &Proxy, postgres: &Proxy) -> Trigger {
        match (self.request, self.side) {
            (Request::Statement(text), Side::Before) => postgres.hold_statement(text),
            (Request::Statement(text), Side::After) => postgres.hold_reply_to_statement(text),
            (Request::Redis(text), Side::Before) => redis.hold_request(text.as_bytes()),
            (Request::Redis(text), Side::After) => redis.hold_reply(text.as_bytes()),
        }
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = format!("{:?}", self.protocol).to_lowercase();
        let side = format!("{:?}", self.side).to_lowercase();
        write!(formatter, "{protocol}, {side} {}", self.step)
    }
}

/// The requests at which processes are killed, each before and after it.
const REQUESTS: [(Protocol, &str, Way, Request); 24] = {
    use Protocol::{Accept, Complete, Elect, Hold, Http, Publish, Relay, Replay, Resend, Retain};
    use Request::{Redis, Statement};
    use Way::{Campaign, Scan, Work};
    [
        (Accept, "inserting the records", Work, Statement("INSERT INTO records")),
        (Accept, "inserting the routes and the commit", Work, Statement("INSERT INTO routes")),
        (Accept, "saving the cached checkpoint", Work, Redis("notification:stream_offsets:")),
        (Publish, "granting a permit", Work, Redis("notification:publish_permits:")),
        (Publish, "appending client events", Work, Redis("event_id")),
        (Publish, "appending mail commands", Work, Redis("delivery_id")),
        (Publish, "acquiring leases", Scan, Redis("notification:route_leases:")),
        (Publish, "acquiring the scan lock", Scan, Redis("notification:scan_locks:")),
        (
            Complete,
            "marking routes as published",
            Work,
            Statement("status = 'published', next_attempt_at = NULL"),
        ),
        (Retain, "locking old records", Work, Statement("= ANY ($1::text[]) AND accepted_at < least(")),
        (Retain, "deleting old records", Work, Statement("DELETE FROM records WHERE notification_id")),
        (Elect, "granting a term", Campaign, Statement("SET fence = fence + 1")),
        (
            Elect,
            "writing the fence into the checkpoint",
            Campaign,
            Statement("SET fence = $2::bigint, updated_at ="),
        ),
        (Elect, "renewing a term", Work, Statement("clock_timestamp()) * 1000)::bigint + $2::bigint")),
        (Relay, "claiming events", Work, Statement("SET status = 'DELIVERING'")),
        (Relay, "appending events", Work, Redis("notification:outbox_receipts:")),
        (Relay, "marking events as delivered", Work, Statement("SET status = 'DELIVERED'")),
        (Http, "claiming idempotency keys", Work, Statement("claimed AS (INSERT INTO idempotency_keys")),
        (Http, "inserting the routes and the commit", Work, Statement("INSERT INTO routes")),
        (Replay, "changing dead routes", Work, Statement("dead_lettered_at = NULL FROM unnest")),
        (Hold, "writing the hold", Work, Statement("INSERT INTO holds")),
        (Hold, "holding routes", Work, Statement("INSERT INTO held_routes")),
        (Hold, "releasing routes", Work, Statement("DELETE FROM held_routes k USING first f")),
        (Resend, "changing published routes", Work, Statement("resent_at = $7::timestamptz")),
    ]
};

/// All boundaries, in the order of their numbers, which begin at 1.
pub(crate) fn boundaries() -> Vec<Boundary> {
    let sides = |(protocol, step, way, request)| {
        [Side::Before, Side::After].map(|side| Boundary { protocol, side, step, way, request })
    };
    REQUESTS.into_iter().flat_map(sides).collect()
}
