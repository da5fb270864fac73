//! Cases that the contract suite of searches does not cover: rows that the service does not write, many rows,
//! and the effect of a search on its connection.

use domain::personal::Sight;
use domain::ports::Queries;
use domain::query::{PageLimit, SearchFilter, SearchOutcome};
use domain::record::RecordCursor;

use super::*;

/// Enough rows that examining all takes longer than [`SHORT`].
const MANY: u32 = 100_000;
const SHORT: Duration = Duration::from_millis(50);

/// Records 1 to `count`, a second apart, with one published route each, to one of 1,000 users; the payload
/// has the number.
async fn records(world: &World, count: u32) {
    let sql = format!(
        "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
            idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', jsonb_build_array('u-' || n % 1000), '{{\"n\":' || n || '}}', n::text, 'v1:', t, t, t, t
         FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 s' AS t FROM generate_series(1, {count}) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at)
         SELECT notification_id, 'push:user:u-' || idempotency_key::int % 1000, 'push', 'user:u-' || idempotency_key::int % 1000,
            'published', 3, accepted_at, accepted_at FROM records"
    );
    world.database.client().await.batch_execute(&sql).await.expect("rows");
}

async fn outcome(queries: &PgQueries, filter: &str, after: Option<&RecordCursor>) -> SearchOutcome {
    let found = queries
        .search_notifications(&SearchFilter::new(filter, Sight::Whole), after, PageLimit::default())
        .await;
    found.unwrap_or_else(|error| panic!("{filter}: {}", ambient::error_chain(&error)))
}

/// The ids of all results of a search.
async fn ids(queries: &PgQueries, filter: &str) -> Vec<String> {
    let (mut found, mut after): (Vec<String>, Option<RecordCursor>) = (Vec::new(), None);
    loop {
        let page = match outcome(queries, filter, after.as_ref()).await {
            SearchOutcome::Found(page) => page,
            refused => panic!("{} is refused: {refused:?}", filter.chars().take(200).collect::<String>()),
        };
        assert!(page.next.is_none() || page.next != after, "the pages do not advance");
        found.extend(page.items.into_iter().map(|item| item.notification_id.to_string()));
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

/// Queries on one connection with this operation timeout.
fn queries(world: &World, operation_timeout: Duration) -> (PgQueries, PgPool) {
    let dsn = Dsn::parse(&world.database.dsn()).expect("a connection string");
    let settings = PoolSettings { max_connections: 1, operation_timeout, session: QUERY_SESSION };
    let pool = PgPool::new(&dsn, settings).expect("a pool");
    (PgQueries::new(pool.clone()), pool)
}

async fn backend(pool: &PgPool) -> Vec<String> {
    let session = pool.session("look").await.expect("PostgreSQL is there");
    session
        .raw("SELECT pg_backend_pid() || ' ' || current_setting('statement_timeout')")
        .await
        .expect("it answers")
}

#[tokio::test]
async fn a_search_that_takes_too_long_ends_in_time_and_leaves_its_connection_as_it_was() {
    let world = World::new().await;
    records(&world, MANY).await;
    let (queries, pool) = queries(&world, SHORT);
    let before = backend(&pool).await;
    for filter in [
        r#"{"payload.n": -1}"#,
        r#"{"route.status": "published", "route.attempt_count": 7}"#,
        r#"{"$or": [{"recipient": "u-1"}, {"recipient": "u-2", "payload.n": 7}], "$not": {"route.channel": "push"}}"#,
        r#"{"$not": {"payload.n": {"$gt": 0}}}"#,
    ] {
        assert_eq!(outcome(&queries, filter, None).await, SearchOutcome::TooExpensive, "{filter}");
    }
    assert_eq!(backend(&pool).await, before);
    let found = ids(&self::queries(&world, Duration::from_secs(30)).0, r#"{"payload.n": {"$lt": 3}}"#).await;
    assert_eq!(found, ["2-0", "1-0"], "with more time the search is answered");
}

#[tokio::test]
async fn a_row_that_another_program_wrote_does_not_fail_a_search() {
    let world = World::new().await;
    records(&world, 8).await;
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    for (number, payload) in [
        (1, "no JSON"),
        (2, r#"{"n": "\u0000"}"#),
        (3, r#"{"n": 1e200000}"#),
        (4, &deep),
        (5, ""),
        (6, "[1]"),
        (7, r#"{"n": "\ud800"}"#),
    ] {
        let sql = "UPDATE records SET payload_json = $1 WHERE notification_id = $2";
        let id = format!("{number}-0");
        world.database.client().await.execute(sql, &[&payload, &id]).await.expect("changed");
    }
    let all: Vec<String> = (1..=8).rev().map(|number| format!("{number}-0")).collect();
    for (filter, expected) in [
        (r#"{"payload.n": {"$exists": true}}"#, &all[..1]),
        (r#"{"payload.n": {"$gt": 0}}"#, &all[..1]),
        (r#"{"payload.n": {"$exists": false}}"#, &all[1..]),
        (r#"{"$not": {"payload.n": 8}}"#, &all[1..]),
    ] {
        assert_eq!(ids(&world.queries, filter).await, expected, "{filter}");
    }
}

#[tokio::test]
async fn a_recipient_with_more_notifications_than_an_index_gives_is_searched_for_in_the_list() {
    let world = World::new().await;
    records(&world, 6_000).await;
    world.execute("UPDATE records SET recipient_user_ids = '[\"u\"]'").await;
    world.execute("UPDATE routes SET recipient_ref = 'user:u'").await;
    let found = ids(&world.queries, r#"{"recipient": "u", "payload.n": {"$lte": 120}}"#).await;
    let numbers: Vec<u32> = found.iter().map(|id| id[..id.len() - 2].parse().expect("a number")).collect();
    assert_eq!(numbers, (1..=120).rev().collect::<Vec<_>>());
}

/// Texts that would be SQL, JSON paths or patterns if they were not bound as values.
const INJECTIONS: [&str; 12] = [
    "'; DROP TABLE records; --",
    "' OR '1'='1",
    "\\'; DROP TABLE routes; --",
    "$1",
    "$$; DROP TABLE records; $$",
    "\"; DROP TABLE records; --",
    "%",
    "_%'",
    "%s {} {0} ?",
    "/* */ ; SELECT pg_sleep(9) --",
    "\u{1}\u{7f}\u{85}\u{2028}",
    "’; DROP TABLE records; --",
];

#[tokio::test]
async fn nothing_in_a_filter_is_ever_sql() {
    let world = World::new().await;
    records(&world, 3).await;
    let whole = ids(&world.queries, "{}").await;
    for injection in INJECTIONS {
        let text = serde_json::Value::from(injection).to_string();
        for name in domain::query::SearchName::FIXED.map(|(name, _)| name).into_iter().chain(["payload.n"]) {
            for filter in [
                format!("{{{name:?}: {text}}}"),
                format!("{{{name:?}: {{\"$in\": [{text}]}}}}"),
                format!("{{{name:?}: {{\"$contains\": {{{text}: {text}}}}}}}"),
                format!("{{{name:?}: {{\"$eq\": [{text}]}}}}"),
                format!("{{{name:?}: {{\"$before\": {text}}}}}"),
                format!(
                    "{{\"$not\": {{{name:?}: {{\"$nin\": [{text}, 1]}}}}, {name:?}: {{\"$gt\": {text}, \"$lt\": {text}}}}}"
                ),
            ] {
                match outcome(&world.queries, &filter, None).await {
                    SearchOutcome::Found(page) => assert!(page.items.is_empty(), "{filter}"),
                    SearchOutcome::Invalid(fault) => assert!(!fault.reason.is_empty(), "{filter}"),
                    other => panic!("{filter}: {other:?}"),
                }
            }
        }
        for filter in [
            format!("{{{text}: 1}}"),
            format!("{{\"producer\": {{{text}: 1, \"$eq\": 1}}}}"),
            format!("{{\"producer\": {{{}: 1}}}}", serde_json::Value::from(format!("$eq{injection}"))),
            format!("{{{}: 1}}", serde_json::Value::from(format!("payload.{injection}"))),
            format!("{{{}: [{{\"producer\": 1}}]}}", serde_json::Value::from(format!("$or{injection}"))),
            format!("{{\"accepted_at\": {{\"$after\": {text}}}}}"),
        ] {
            let found = outcome(&world.queries, &filter, None).await;
            assert!(matches!(found, SearchOutcome::Invalid(_)), "{filter}: {found:?}");
        }
    }
    assert_eq!(ids(&world.queries, "{}").await, whole, "nothing was changed");
}

#[tokio::test]
async fn the_largest_filters_are_answered() {
    let world = World::new().await;
    records(&world, 3).await;
    // 64 times 15 is at most the 1,000 elements that the arrays of a filter may have together.
    let many = |operand: &str| vec![operand; 15].join(",");
    let conditions: Vec<String> = (0..64)
        .map(|n| match n % 4 {
            0 => format!(r#"{{"payload.m{n}": {{"$in": [{}]}}}}"#, many("\"x\"")),
            1 => format!(r#"{{"route.status": {{"$nin": [{}]}}}}"#, many("\"x\"")),
            2 => format!(r#"{{"payload.n": {{"$nin": [{}]}}}}"#, many("1e400")),
            _ => format!(r#"{{"notification_id": {{"$in": [{}, "1-0"]}}}}"#, vec!["\"x\""; 14].join(",")),
        })
        .collect();
    let deep = (0..7).fold(format!("{{\"$or\": [{}]}}", conditions.join(",")), |inner, n| match n % 2 {
        0 => format!("{{\"$not\": {inner}}}"),
        _ => format!("{{\"$and\": [{inner}]}}"),
    });
    assert_eq!(ids(&world.queries, &deep).await, ["3-0", "2-0", "1-0"], "an even number of negations");
    let one_more = format!("{{\"$and\": [{deep}]}}");
    assert!(matches!(outcome(&world.queries, &one_more, None).await, SearchOutcome::Invalid(_)));
}
