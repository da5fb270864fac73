//! The console with a million notifications: each page responds within 100 ms.

use std::time::{Duration, Instant};

use harness::{HttpResponse, Service, request};

use crate::world::*;

/// The time limit of 95 of 100 pages.
const PAGE_BOUND: Duration = Duration::from_millis(100);
/// The number of times that each page is opened before it is measured.
const WARM_UPS: usize = 5;
/// The number of times that each page is measured.
const MEASURED: usize = 40;
/// The operator's token, and its entry.
const TOKEN: &str = "operator-token";
const TOKENS: &str = "[[token]]\nname = \"ops\"\n\
    sha256 = \"0850123315d21ab90f4f7236408a52ef6dbd6a02a6550e5c10dc73f4d993680e\"\nrole = \"operator\"\n";

/// A million notifications with a route each: one in five a dead letter, one in a hundred failed and not due,
/// the others published; and 200,000 malformed intents.
const ROWS: &str = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
        idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
     SELECT n || '-0', 'game.finished', 'game_master', 'user', jsonb_build_array('u-' || n % 10000), '{}', 'key-' || n, 'v1:', t, t, t, t
     FROM (SELECT n, now() - n * interval '100 ms' AS t FROM generate_series(1, 1000000) n) r;
     INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, attempt_count, max_attempts, next_attempt_at,
        created_at, updated_at, last_error_classification, last_error_message, last_error_at, dead_lettered_at, published_at,
        published_entry_id)
     SELECT id, 'push:user:u', 'push', 'user:u', status, 0, 3, CASE status WHEN 'failed' THEN now() + interval '1 day' END, t, t,
        CASE status WHEN 'published' THEN '' ELSE 'gateway_stream_publish_failed' END,
        CASE status WHEN 'published' THEN '' ELSE 'WRONGTYPE' END,
        CASE status WHEN 'published' THEN NULL ELSE t END, CASE status WHEN 'dead_letter' THEN t END,
        CASE status WHEN 'published' THEN t END, CASE status WHEN 'published' THEN '1-0' ELSE '' END
     FROM (SELECT notification_id AS id, accepted_at AS t, CASE WHEN substr(idempotency_key, 5)::int % 5 = 0 THEN 'dead_letter'
        WHEN substr(idempotency_key, 5)::int % 100 = 1 THEN 'failed' ELSE 'published' END AS status FROM records) r;
     INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
        failure_classification, failure_message, recovery_hint, created_at)
     SELECT notification_id, route_id, channel, recipient_ref, 3, 3, last_error_classification, 'WRONGTYPE', 'h', created_at
     FROM routes WHERE status = 'dead_letter';
     INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, producer, failure_code, failure_message, raw_fields,
        recorded_at)
     SELECT 'notification:intents', n || '-0', 'f', 'game_lobby', 'missing_field', 'producer is absent or empty', '[]',
        now() - n * interval '1 s' FROM generate_series(1, 200000) n;
     ANALYZE";

/// The requests of an operator, with the `Cookie` of the session.
struct Operator<'a> {
    service: &'a Service,
    cookie: String,
}

impl Operator<'_> {
    async fn get(&self, path: &str) -> HttpResponse {
        let headers = [("Cookie", self.cookie.as_str())];
        request(&self.service.api_addr(), "GET", path, &headers, "").await.expect("the console answers")
    }

    async fn post(&self, path: &str, form: &str) -> HttpResponse {
        let headers =
            [("Cookie", self.cookie.as_str()), ("Content-Type", "application/x-www-form-urlencoded")];
        request(&self.service.api_addr(), "POST", path, &headers, form).await.expect("the console answers")
    }

    /// Signs in with the form.
    async fn sign_in(service: &Service) -> Operator<'_> {
        let mut operator = Operator { service, cookie: String::new() };
        let page = operator.get("/console/sign-in").await;
        operator.take_cookie(&page);
        let form = format!("form_token={}&token={TOKEN}", form_token(&page));
        let answer = operator.post("/console/sign-in", &form).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        operator.take_cookie(&answer);
        operator
    }

    fn take_cookie(&mut self, answer: &HttpResponse) {
        let set = answer.headers.iter().filter(|(name, _)| name == "set-cookie");
        let pairs = set.filter(|(_, value)| !value.contains("Max-Age=0"));
        let pairs: Vec<&str> = pairs.filter_map(|(_, value)| value.split(';').next()).collect();
        if !pairs.is_empty() {
            self.cookie = pairs.join("; ");
        }
    }
}

/// The token of the first form of a page.
fn form_token(page: &HttpResponse) -> String {
    let (_, rest) = page.body.split_once("name=\"form_token\" value=\"").expect("a form");
    rest.split('"').next().unwrap_or_default().to_owned()
}

/// The time within which 95 of 100 responses arrived.
async fn p95(ask: impl AsyncFn() -> HttpResponse) -> Duration {
    let mut times = Vec::new();
    for round in 0..WARM_UPS + MEASURED {
        let started = Instant::now();
        let answer = ask().await;
        let took = started.elapsed();
        assert_eq!(answer.status, 200, "{}", answer.body);
        if round >= WARM_UPS {
            times.push(took);
        }
    }
    times.sort_unstable();
    times[times.len() * 95 / 100]
}

#[tokio::test]
async fn each_page_is_there_within_100_ms_at_a_million_notifications() {
    let world = World::new().await;
    let tokens = tempfile::NamedTempFile::new().expect("a temporary folder");
    std::fs::write(tokens.path(), TOKENS).expect("the file is written");
    let service = world
        .service()
        .env("NOTIFICATION_API_HTTP_ADDR", "127.0.0.1:0")
        .env("NOTIFICATION_API_TOKENS_FILE", tokens.path().display().to_string())
        .env("NOTIFICATION_CONSOLE", "on")
        .start()
        .await;
    world.database.client().await.batch_execute(ROWS).await.expect("the rows are right");
    world.execute("VACUUM").await;
    let operator = Operator::sign_in(&service).await;

    let second = |page: &HttpResponse| {
        let (before, _) = page.body.split_once("\" rel=\"next\"").expect("a next page");
        before.rsplit_once("href=\"").expect("a link").1.replace("&amp;", "&")
    };
    let second_of_all = second(&operator.get("/console/notifications").await);
    let letters = operator.get("/console/dead-letters").await;
    let plan = format!("form_token={}&do=replay_all", form_token(&letters));
    let second_of_letters = second(&letters);
    let paths = [
        "/console/",
        "/console/notifications",
        &second_of_all,
        "/console/notifications?limit=200",
        "/console/notifications?status=failed",
        "/console/notifications?recipient=u-77",
        "/console/notifications?idempotency_key=key-500000",
        "/console/notifications?notification_type=game.turn.ready",
        "/console/notifications?filter=%7B%22recipient%22%3A%22u-77%22%7D",
        "/console/notifications/500000-0",
        "/console/dead-letters",
        &second_of_letters,
        "/console/dead-letters?limit=200&channel=push",
        "/console/malformed",
        "/console/malformed?code=unknown_field",
        "/console/malformed/1000-0",
        "/console/catalogue",
        "/console/catalogue/game.finished",
    ];
    let mut slow = Vec::new();
    let mut judge = |what: &str, took: Duration| {
        println!("{:>8.1} ms  {what}", took.as_secs_f64() * 1_000.0);
        if took > PAGE_BOUND {
            slow.push(format!("{what}: {took:?}"));
        }
    };
    for path in paths {
        judge(path, p95(async || operator.get(path).await).await);
    }
    // The plan of the largest change selects ten thousand dead letters and counts as many beyond: it is not a
    // page, and has no limit.
    let took = p95(async || operator.post("/console/dead-letters/plan", &plan).await).await;
    println!("{:>8.1} ms  the plan of all dead letters", took.as_secs_f64() * 1_000.0);
    assert!(slow.is_empty(), "{}", slow.join("\n"));
}
