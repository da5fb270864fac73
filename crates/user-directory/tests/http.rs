//! The directory over real HTTP, against a stand-in that can misbehave.

use std::time::{Duration, Instant};

use domain::ports::{Lookup, User, UserDirectory};
use harness::contract::directory::DirectoryFixture;
use local_servers::{DirectoryLoad, StandInDirectory, UserFault};
use user_directory::{HttpUserDirectory, UserDirectorySettings};

const TIMEOUT: Duration = Duration::from_millis(500);

/// A directory with 4 requests at a time.
async fn directory(cache_ttl: Duration) -> (StandInDirectory, HttpUserDirectory) {
    directory_with(4, TIMEOUT, cache_ttl).await
}

async fn directory_with(
    concurrency: usize,
    timeout: Duration,
    cache_ttl: Duration,
) -> (StandInDirectory, HttpUserDirectory) {
    // Another test of this process may have installed it already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = StandInDirectory::start().await.expect("a free port");
    let settings = UserDirectorySettings {
        base_url: server.base_url().parse().expect("a URL"),
        timeout,
        concurrency,
        cache_ttl,
        cache_entries: 100,
    };
    (server, HttpUserDirectory::new(settings).expect("TLS can be set up"))
}

fn cause(lookup: &Lookup) -> &str {
    match lookup {
        Lookup::Unavailable(cause) => cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn answers_come_in_the_order_asked_and_each_user_is_asked_for_once() {
    let (server, directory) = directory(Duration::ZERO).await;
    server.set_user("u-2", "two@example.com", "fr");
    server.remove_user("gone");
    let answers = directory.look_up(&["u-2", "gone", "u-2"]).await;
    let two = Lookup::Found(User { email: "two@example.com".into(), preferred_language: "fr".into() });
    assert_eq!(answers, [two.clone(), Lookup::Missing, two]);
    assert_eq!((server.requests_for("u-2"), server.requests_for("gone")), (1, 1));
}

#[tokio::test]
async fn calls_that_ask_for_one_user_at_the_same_time_share_one_request() {
    let (server, directory) = directory_with(4, Duration::from_secs(10), Duration::ZERO).await;
    server.set_fault("u-1", UserFault::Slow(Duration::from_millis(200)));
    let calls = (0..100).map(|_| directory.look_up(&["u-1"]));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| matches!(answer[..], [Lookup::Found(_)])), "{answers:?}");
    assert_eq!(server.requests_for("u-1"), 1);
    directory.look_up(&["u-1"]).await;
    assert_eq!(server.requests_for("u-1"), 2, "what was in flight once was kept");
}

#[tokio::test]
async fn only_users_that_exist_are_remembered() {
    let (server, directory) = directory(Duration::from_secs(60)).await;
    server.remove_user("gone");
    server.set_fault("broken", UserFault::Answer(500, String::new()));
    for _ in 0..3 {
        directory.look_up(&["u-1", "gone", "broken"]).await;
    }
    let asked = ["u-1", "gone", "broken"].map(|id| server.requests_for(id));
    assert_eq!(asked, [1, 3, 3]);
}

#[tokio::test]
async fn an_answer_that_breaks_the_contract_is_no_answer_and_its_cause_is_reported() {
    let (server, directory) = directory(Duration::ZERO).await;
    let large = format!(r#"{{"user":{{"user_id":"u","email":"{}"}}}}"#, "x".repeat(100_000));
    for (fault, expected) in [
        (UserFault::Hang, "no response from the user directory within 500ms"),
        (UserFault::WrongUser, "another user"),
        (UserFault::Answer(200, "<html>".into()), "unexpected body"),
        (UserFault::Answer(200, large), "could not be read"),
        (UserFault::Answer(404, "{}".into()), "unexpected body"),
        (UserFault::Answer(404, r#"{"error":{"code":"no_route"}}"#.into()), "a code other than"),
        (UserFault::Answer(500, "{}".into()), "status 500"),
        (UserFault::Answer(302, "{}".into()), "status 302"),
        (UserFault::Answer(204, String::new()), "status 204"),
    ] {
        server.set_fault("u", fault.clone());
        let answers = directory.look_up(&["u"]).await;
        assert!(cause(&answers[0]).contains(expected), "{fault:?}: {}", cause(&answers[0]));
    }
}

#[tokio::test]
async fn a_directory_that_is_gone_is_found_again_when_it_is_back() {
    let (mut server, directory) = directory(Duration::ZERO).await;
    assert!(matches!(directory.look_up(&["u"]).await[0], Lookup::Found(_)));
    server.stop().await;
    let answers = directory.look_up(&["u"]).await;
    assert!(cause(&answers[0]).contains("user directory"), "{answers:?}");
    server.start_again().await.expect("its port is free");
    assert!(matches!(directory.look_up(&["u"]).await[0], Lookup::Found(_)));
}

#[tokio::test]
async fn every_id_arrives_as_it_is() {
    let (server, directory) = directory(Duration::ZERO).await;
    for id in [".", "..", "a/b", "a b", "a%2Fb", "ü", "?x=1", "#y", "a+b", "a&b"] {
        assert!(matches!(directory.look_up(&[id]).await[0], Lookup::Found(_)), "{id}");
        assert_eq!(server.requests_for(id), 1, "{id}");
    }
}

#[tokio::test]
async fn one_slow_user_delays_no_other_beyond_the_time_out() {
    let (server, directory) = directory(Duration::ZERO).await;
    server.set_fault("slow", UserFault::Hang);
    let ids: Vec<String> = (0..20).map(|n| format!("u-{n}")).chain(["slow".to_owned()]).collect();
    let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers =
        tokio::time::timeout(UNHURRIED, directory.look_up(&asked)).await.expect("it does not wait for it");
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Lookup::Found(_))).count(), 20);
}

#[tokio::test]
async fn a_directory_that_answers_no_request_is_not_asked_about_every_user() {
    let (server, directory) = directory(Duration::ZERO).await;
    let ids: Vec<String> = (0..100).rev().map(|n| format!("u-{n:03}")).collect();
    for id in &ids {
        server.set_fault(id, UserFault::Answer(503, "{}".into()));
    }
    let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers = directory.look_up(&asked).await;
    assert!(cause(&answers[0]).contains("status 503"), "the first given is the first asked for");
    assert!(cause(&answers[99]).contains("not looked up"), "{:?}", answers[99]);
    assert!(server.requests() < 20, "{} requests", server.requests());
}

#[tokio::test]
async fn users_that_fail_keep_no_other_from_being_asked_for() {
    let (server, directory) = directory(Duration::ZERO).await;
    let ids: Vec<String> = (0..40).map(|n| format!("u-{n}")).collect();
    for id in ids.iter().step_by(2) {
        server.set_fault(id, UserFault::Answer(500, "{}".into()));
    }
    let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers = directory.look_up(&asked).await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Lookup::Found(_))).count(), 20);
}

fn users(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("u-{n:04}")).collect()
}

async fn look_up(directory: &HttpUserDirectory, ids: &[String]) -> Vec<Lookup> {
    directory.look_up(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await
}

fn found(answers: &[Lookup]) -> usize {
    answers.iter().filter(|answer| matches!(answer, Lookup::Found(_))).count()
}

/// Long enough for every response on a busy machine, including repeated requests.
const UNHURRIED: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_directory_that_serves_eight_at_a_time_answers_for_a_hundred_users_in_one_call() {
    let (server, directory) = directory_with(32, UNHURRIED, Duration::ZERO).await;
    server.set_load(DirectoryLoad {
        latency: Duration::from_millis(50),
        at_most: 8,
        ..DirectoryLoad::default()
    });
    assert_eq!(found(&look_up(&directory, &users(100)).await), 100);
    assert!(server.refusals() < 100, "{} refusals for 100 users", server.refusals());
    let before = server.refusals();
    assert_eq!(found(&look_up(&directory, &users(100)).await), 100);
    let refusals = server.refusals() - before;
    assert!(refusals < 24, "the concurrency was forgotten: {refusals} refusals");
}

#[tokio::test]
async fn a_thousand_users_of_whom_one_in_fifty_is_refused_are_answered_in_one_call() {
    let (server, directory) = directory_with(32, UNHURRIED, Duration::ZERO).await;
    let latency = Duration::from_millis(30);
    server.set_load(DirectoryLoad { latency, refuse_every: 50, ..DirectoryLoad::default() });
    let started = Instant::now();
    assert_eq!(found(&look_up(&directory, &users(1_000)).await), 1_000);
    assert!(server.refusals() >= 20);
    // Sequentially they would take 30 s.
    assert!(started.elapsed() < latency * 1_000 / 4, "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_answer_that_is_in_flight_while_others_fail_is_kept() {
    let (server, directory) = directory_with(8, UNHURRIED, Duration::ZERO).await;
    let ids = users(100);
    server.set_fault(&ids[0], UserFault::Slow(Duration::from_millis(300)));
    for id in &ids[1..] {
        server.set_fault(id, UserFault::Answer(500, "{}".into()));
    }
    let answers = look_up(&directory, &ids).await;
    assert!(matches!(answers[0], Lookup::Found(_)), "{:?}", answers[0]);
    assert!(server.requests() < 20, "{} requests", server.requests());
}

#[tokio::test]
async fn a_hung_directory_costs_one_timeout_and_then_one_request_a_call() {
    let (server, directory) = directory_with(8, TIMEOUT, Duration::ZERO).await;
    let ids = users(100);
    server.set_load(DirectoryLoad { latency: TIMEOUT * 100, ..DirectoryLoad::default() });
    for requests in [8, 9] {
        let started = Instant::now();
        let answers = look_up(&directory, &ids).await;
        assert!(
            cause(&answers[0]).contains("no response from the user directory within"),
            "{:?}",
            answers[0]
        );
        assert!(cause(&answers[99]).contains("not looked up"), "{:?}", answers[99]);
        // A timeout for each user would take 50 s sequentially, and over 6 s with eight at a time.
        assert!(started.elapsed() < TIMEOUT * 10, "{:?}", started.elapsed());
        assert_eq!(server.requests(), requests);
    }
    server.set_load(DirectoryLoad::default());
    assert_eq!(found(&look_up(&directory, &ids).await), 100, "it is asked again as soon as it serves");
}

#[tokio::test]
async fn a_directory_that_refuses_everything_gets_few_requests_and_soon_fewer() {
    let (server, directory) = directory_with(32, UNHURRIED, Duration::ZERO).await;
    server.set_load(DirectoryLoad { at_most: 0, ..DirectoryLoad::default() });
    let ids = users(1_000);
    for requests in [32, 36, 40] {
        let answers = look_up(&directory, &ids).await;
        assert!(cause(&answers[0]).contains("status 503"), "{:?}", answers[0]);
        assert_eq!(server.requests(), requests);
    }
}

#[tokio::test]
async fn a_user_that_is_always_refused_keeps_no_answer_of_the_others_from_the_caller() {
    let (server, directory) = directory_with(8, UNHURRIED, Duration::ZERO).await;
    let ids = users(200);
    server.set_fault(&ids[100], UserFault::Answer(503, "{}".into()));
    let answers = look_up(&directory, &ids).await;
    assert_eq!(found(&answers), 199);
    assert!(cause(&answers[100]).contains("status 503"));
    let requests = server.requests_for(&ids[100]);
    assert!((2..=6).contains(&requests), "{requests} requests for the user that is refused");
}

/// A directory without a cache.
struct OverHttp {
    server: StandInDirectory,
    directory: HttpUserDirectory,
}

impl OverHttp {
    async fn new() -> Self {
        let (server, directory) = directory(Duration::ZERO).await;
        Self { server, directory }
    }
}

impl DirectoryFixture for OverHttp {
    fn directory(&self) -> &impl UserDirectory {
        &self.directory
    }

    async fn set(&self, user_id: &str, lookup: &Lookup) {
        // A delay of zero is not a fault.
        let mut fault = UserFault::Slow(Duration::ZERO);
        match lookup {
            Lookup::Found(user) => self.server.set_user(user_id, &user.email, &user.preferred_language),
            Lookup::Missing => self.server.remove_user(user_id),
            Lookup::Unavailable(_) => fault = UserFault::Answer(500, String::new()),
        }
        self.server.set_fault(user_id, fault);
    }
}

mod contract {
    harness::directory_contract!(super::OverHttp::new().await);
}
