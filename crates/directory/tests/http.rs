//! The directory over real HTTP, against a stand-in that can misbehave.

use std::time::Duration;

use directory::{DirectorySettings, HttpDirectory};
use domain::ports::{Lookup, User, UserDirectory};
use local_servers::{Fault, StandInDirectory};

const TIMEOUT: Duration = Duration::from_millis(500);

async fn directory(cache_ttl: Duration) -> (StandInDirectory, HttpDirectory) {
    // Another test of this process may have done it already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = StandInDirectory::start().await.expect("a free port");
    let settings = DirectorySettings {
        base_url: server.base_url().parse().expect("a URL"),
        timeout: TIMEOUT,
        concurrency: 4,
        cache_ttl,
        cache_entries: 100,
    };
    (server, HttpDirectory::new(settings).expect("TLS can be set up"))
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
async fn only_users_that_exist_are_remembered() {
    let (server, directory) = directory(Duration::from_secs(60)).await;
    server.remove_user("gone");
    server.set_fault("broken", Fault::Answer(500, String::new()));
    for _ in 0..3 {
        directory.look_up(&["u-1", "gone", "broken"]).await;
    }
    let asked = ["u-1", "gone", "broken"].map(|id| server.requests_for(id));
    assert_eq!(asked, [1, 3, 3]);
}

#[tokio::test]
async fn what_is_not_as_agreed_is_no_answer_and_says_why() {
    let (server, directory) = directory(Duration::ZERO).await;
    let large = format!(r#"{{"user":{{"user_id":"u","email":"{}"}}}}"#, "x".repeat(100_000));
    for (fault, expected) in [
        (Fault::Hang, "no answer within 500ms"),
        (Fault::WrongUser, "another user"),
        (Fault::Answer(200, "<html>".into()), "not as agreed"),
        (Fault::Answer(200, large), "could not be read"),
        (Fault::Answer(404, "{}".into()), "not as agreed"),
        (Fault::Answer(404, r#"{"error":{"code":"no_route"}}"#.into()), "another code"),
        (Fault::Answer(500, "{}".into()), "status 500"),
        (Fault::Answer(302, "{}".into()), "status 302"),
        (Fault::Answer(204, String::new()), "status 204"),
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
    server.set_fault("slow", Fault::Hang);
    let ids: Vec<String> = (0..20).map(|n| format!("u-{n}")).chain(["slow".to_owned()]).collect();
    let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers =
        tokio::time::timeout(TIMEOUT * 4, directory.look_up(&asked)).await.expect("within the time-out");
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Lookup::Found(_))).count(), 20);
}

#[tokio::test]
async fn a_directory_that_answers_nobody_is_not_asked_for_everybody() {
    let (server, directory) = directory(Duration::ZERO).await;
    let ids: Vec<String> = (0..100).rev().map(|n| format!("u-{n:03}")).collect();
    for id in &ids {
        server.set_fault(id, Fault::Answer(503, "{}".into()));
    }
    let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers = directory.look_up(&asked).await;
    assert!(cause(&answers[0]).contains("status 503"), "the first given is the first asked for");
    assert!(cause(&answers[99]).contains("not asked"), "{:?}", answers[99]);
    assert!(server.requests() < 20, "{} requests", server.requests());
}

#[tokio::test]
async fn users_that_fail_keep_no_other_from_being_asked_for() {
    let (server, directory) = directory(Duration::ZERO).await;
    let ids: Vec<String> = (0..40).map(|n| format!("u-{n}")).collect();
    for id in ids.iter().step_by(2) {
        server.set_fault(id, Fault::Answer(500, "{}".into()));
    }
    let asked: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers = directory.look_up(&asked).await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Lookup::Found(_))).count(), 20);
}
