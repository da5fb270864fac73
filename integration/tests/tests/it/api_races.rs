//! The HTTP API under concurrent requests: simultaneous ones, very many, and after a database lost some of
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use harness::{Service, request, wait_for};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::*;
use crate::world::*;

const MIB: usize = 1 << 20;

/// A request with a key, sent except for its last byte.
struct Almost {
    stream: TcpStream,
    last: u8,
}

impl Almost {
    async fn send(service: &Service, key: &str, intent: &Value) -> Self {
        let body = intent.to_string();
        let mut stream = TcpStream::connect(service.api_addr()).await.expect("it listens");
        stream.set_nodelay(true).expect("it is open");
        let head = format!(
            "POST /v1/intents HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {PRODUCER}\r\n\
             Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("it is open");
        let (last, most) = body.as_bytes().split_last().expect("a body");
        stream.write_all(most).await.expect("it is open");
        Self { stream, last: *last }
    }

    /// Sends the last byte; returns status and body of the response.
    async fn complete(mut self) -> (u16, String) {
        self.stream.write_all(&[self.last]).await.expect("it is open");
        read_answer(&mut self.stream).await.expect("an answer")
    }
}

/// Reads status and body. Returns an error if the connection ends before the whole response.
async fn read_answer(stream: &mut TcpStream) -> std::io::Result<(u16, String)> {
    let mut bytes = Vec::new();
    let end = loop {
        match stream.read_buf(&mut bytes).await {
            Ok(0) => break std::io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let answer = String::from_utf8_lossy(&bytes);
    let whole = || {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let status = head.split(' ').nth(1)?.parse().ok()?;
        (length == Some(body.len())).then(|| (status, body.to_owned()))
    };
    whole().ok_or(end)
}

#[tokio::test]
async fn of_two_replicas_with_one_key_at_one_moment_one_accepts_and_no_answer_contradicts_it() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let replicas =
        [with_api(world.service(), &tokens).start().await, with_api(world.service(), &tokens).start().await];
    for round in 0..40_u32 {
        let key = format!("k-{round}");
        // In every other round the second intent differs.
        let differs = round % 2 == 1;
        let intents = [body(54), body(54 + u32::from(differs))];
        let one = Almost::send(&replicas[0], &key, &intents[0]).await;
        let other = Almost::send(&replicas[1], &key, &intents[1]).await;
        let (one, other) = tokio::join!(one.complete(), other.complete());
        let answers = [one, other];
        let accepted: BTreeSet<&String> =
            answers.iter().filter(|(status, _)| *status == 202).map(|(_, body)| body).collect();
        assert_eq!(accepted.len(), 1, "{answers:?}");
        for (status, body) in &answers {
            let may_be = [202, 409, if differs { 422 } else { 202 }];
            assert!(may_be.contains(status), "{status}: {body}");
        }
        // A request that received 409 learns the outcome by repeating it.
        let mut told = Vec::new();
        for (replica, intent) in replicas.iter().zip(&intents) {
            told.push(
                wait_for("it is decided", BOUND, async || {
                    let answer = send(replica, &key, intent).await;
                    (answer.status != 409).then_some(answer)
                })
                .await,
            );
        }
        let same = told.iter().filter(|answer| answer.status == 202);
        assert!(same.clone().all(|answer| accepted.contains(&answer.body)), "{told:?}");
        assert_eq!(same.count(), if differs { 1 } else { 2 }, "{told:?}");
    }
    world.settled(40).await;
    assert_eq!(world.outbound().await.len(), 40 * 4);
}

#[tokio::test]
async fn of_a_thousand_conflicts_in_a_batch_each_is_told_in_what_it_differs() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let batch = |turn: u32| {
        let element = |number: u32| {
            let mut element = body(turn);
            element["recipient_user_ids"] = json!(["u-1"]);
            element["idempotency_key"] = json!(format!("k-{number}"));
            element
        };
        json!({"intents": (0..1_000).map(element).collect::<Vec<_>>()}).to_string()
    };
    let send = async |turn| {
        let answer = ask(&service, PRODUCER, "POST", "/v1/intents:batch", None, &batch(turn)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["results"].as_array().expect("results").clone()
    };
    assert!(send(54).await.iter().all(|result| result["outcome"] == "accepted"));
    let conflicts = send(55).await;
    let unlike =
        conflicts.iter().filter(|result| result["status"] != 422 || result["differs"] != json!(["payload"]));
    assert_eq!(unlike.collect::<Vec<_>>(), Vec::<&Value>::new());
    assert_eq!(conflicts.len(), 1_000);
}

#[tokio::test]
async fn keys_that_postgresql_lost_after_the_answer_are_accepted_again_and_no_answer_names_a_lost_record() {
    let mut world = World::with_own_postgres().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let mut postgres = world.postgres.take().expect("its own");
    let batch = |key: &str| {
        let mut element = body(54);
        element["idempotency_key"] = json!(key);
        json!({"intents": [element]}).to_string()
    };
    let send_batch = async |key: &str| {
        wait_for("the batch is decided", BOUND, async || {
            let answer = ask(&service, PRODUCER, "POST", "/v1/intents:batch", None, &batch(key)).await;
            assert!([200, 503].contains(&answer.status), "{}", answer.body);
            (answer.status == 200).then(|| answer.json()["results"][0].clone())
        })
        .await
    };
    let accepted = async |key: &str| {
        wait_for("the intent is decided", BOUND, async || {
            let answer = send(&service, key, &body(54)).await;
            assert!([202, 409, 503].contains(&answer.status), "{}", answer.body);
            (answer.status == 202).then_some(answer)
        })
        .await
    };
    let kept = accepted("kept").await;
    world.settled(1).await;
    postgres.stop().await;
    postgres.save().expect("it is copied");
    postgres.start_again().await.expect("it starts again");
    let lost = accepted("lost").await.json();
    let lost_in_batch = send_batch("lost-in-batch").await;
    assert_eq!((&lost["outcome"], &lost_in_batch["outcome"]), (&json!("accepted"), &json!("accepted")));
    world.settled(3).await;
    postgres.kill().await;
    postgres.restore().expect("it is copied back");
    postgres.start_again().await.expect("it starts again");

    let again = accepted("kept").await;
    assert_eq!((&again.body, again.header("idempotency-replayed")), (&kept.body, Some("true")));
    let found = async |id: &Value| {
        let path = format!("/v1/notifications/{}", id.as_str().expect("an id"));
        wait_for("it is read", BOUND, async || {
            let answer = read(&service, PRODUCER, &path).await;
            assert!([200, 404, 503].contains(&answer.status), "{}", answer.body);
            (answer.status != 503).then_some(answer.status)
        })
        .await
    };
    assert_eq!(found(&lost["notification_id"]).await, 404, "the test has lost it");
    let fresh = accepted("lost").await;
    assert_eq!((&fresh.json()["outcome"], fresh.header("idempotency-replayed")), (&json!("accepted"), None));
    let fresh_in_batch = send_batch("lost-in-batch").await;
    assert_eq!(fresh_in_batch["outcome"], "accepted", "{fresh_in_batch}");
    for id in [&fresh.json()["notification_id"], &fresh_in_batch["notification_id"]] {
        assert_eq!(found(id).await, 200);
    }
    world.settled(3).await;
}

/// Lets this process, and those that it starts from now on, open the maximum number of files.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("the hard limit is allowed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_bodies_of_eight_mebibytes_at_once_take_bounded_memory_and_harm_nothing_else() {
    const CLIENTS: usize = 1_024;
    const BODY_BYTES: usize = 8 * MIB;
    // The defaults: the memory of all bodies together, and the buffer of each connection.
    const BUFFERED_BYTES: usize = 64 * MIB;
    const CONNECTION_BYTES: usize = 128 * 1024;
    allow_many_files();
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let mut element = body(54);
    element["idempotency_key"] = json!("k-1");
    let batch = json!({"intents": [element]}).to_string();
    let body: Arc<[u8]> = format!("{batch}{}", " ".repeat(BODY_BYTES - batch.len())).into_bytes().into();
    let peak = || service.peak_memory().expect("it runs") as usize;
    let before = peak();
    let clients = (0..CLIENTS).map(|number| {
        let (addr, body) = (service.api_addr(), Arc::clone(&body));
        // Every fourth is rejected for its length, which the service still reads.
        let path = if number % 4 == 0 { "/v1/intents" } else { "/v1/intents:batch" };
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(addr).await?;
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {PRODUCER}\r\n\
                 Content-Type: application/json\r\nIdempotency-Key: k-{number}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            // On a busy machine, the service may stop reading before all is sent. Its response is still
            // there.
            let sent = stream.write_all(&body).await;
            match read_answer(&mut stream).await {
                Ok(answer) => Ok(answer),
                Err(error) => Err(sent.err().unwrap_or(error)),
            }
        })
    });
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for client in clients.collect::<Vec<_>>() {
        let answer = client.await.expect("no panic");
        *seen
            .entry(answer.map_or_else(|error| error.to_string(), |(status, _)| status.to_string()))
            .or_default() += 1;
    }
    println!("{seen:?}, {} MiB more", (peak() - before) / MIB);
    // 503 and 408: this machine could not take 8 GiB within the request timeout. A client that had not sent
    // its body long after that is disconnected; crates/http-server/tests/memory.rs tests with a server that
    // does nothing else that no other client is.
    let answered: usize = ["200", "413", "408", "503"].iter().filter_map(|status| seen.get(*status)).sum();
    let answers = seen.keys().filter(|answer| answer.parse::<u16>().is_ok());
    assert_eq!(
        answers.filter(|answer| !["200", "413", "408", "503"].contains(&answer.as_str())).count(),
        0,
        "{seen:?}"
    );
    assert!(answered >= CLIENTS / 2, "{seen:?}");
    let (used, allowed) = (peak() - before, 2 * BUFFERED_BYTES + CLIENTS * CONNECTION_BYTES);
    assert!(used <= allowed, "{} MiB more at the peak", used / MIB);
    // The memory was released: the next such body is accepted.
    let headers = [("Authorization", "Bearer producer-token"), ("Content-Type", "application/json")];
    let after = request(&service.api_addr(), "POST", "/v1/intents:batch", &headers, &*body).await;
    assert_eq!(after.expect("the API answers").status, 200);
    world.settled(1).await;
}
