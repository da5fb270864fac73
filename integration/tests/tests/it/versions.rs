//! Servers that are too old end the start of every process; servers that are newer than the tested ones do
//! not.

use harness::{ServiceBuilder, TestDatabase};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::outbox::{Outbox, shows};
use crate::state::State;

/// A Redis with this `INFO`, or one that denies the permission for it if `info` is empty; it replies OK to
/// everything else.
async fn redis_that_says(info: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_redis(stream, info));
        }
    });
    port
}

async fn serve_redis(stream: TcpStream, info: &str) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let count: usize = line.trim().trim_start_matches('*').parse().map_err(std::io::Error::other)?;
        let mut words = Vec::new();
        for _ in 0..count {
            let mut length = String::new();
            stream.read_line(&mut length).await?;
            let length: usize =
                length.trim().trim_start_matches('$').parse().map_err(std::io::Error::other)?;
            let mut word = vec![0; length + 2];
            stream.read_exact(&mut word).await?;
            words.push(String::from_utf8_lossy(&word).trim().to_uppercase());
        }
        let answer = match words[0].as_str() {
            "INFO" if info.is_empty() => {
                "-NOPERM this user has no permissions to run the 'info' command\r\n".to_owned()
            }
            "INFO" => format!("${}\r\n{info}\r\n", info.len()),
            "PING" => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).await?;
    }
}

/// A PostgreSQL of this version that responds to one query for it.
async fn postgres_of(version: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_postgres(stream, version));
        }
    });
    port
}

/// A message of the protocol: its type, its length with itself, its body.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("short");
    [&[kind][..], &length.to_be_bytes(), body].concat()
}

async fn serve_postgres(mut stream: TcpStream, version: &str) -> std::io::Result<()> {
    let startup = stream.read_u32().await?;
    let mut body = vec![0; startup as usize - 4];
    stream.read_exact(&mut body).await?;
    // The response of PostgreSQL 12 to a setting that came later.
    if String::from_utf8_lossy(&body).contains("enable_incremental_sort") {
        let text = b"SFATAL\0VFATAL\0C42704\0Munrecognized configuration parameter\0\0";
        return stream.write_all(&message(b'E', text)).await;
    }
    let ready = message(b'Z', b"I");
    stream.write_all(&[message(b'R', &0_u32.to_be_bytes()), ready.clone()].concat()).await?;
    while stream.read_u8().await? == b'Q' {
        let length = stream.read_u32().await?;
        let mut query = vec![0; length as usize - 4];
        stream.read_exact(&mut query).await?;
        // One column of text: its name, table, attribute, type, size, modifier and format; then one row.
        let column =
            [&b"\0\x01server_version_num\0"[..], &[0; 6], &25_u32.to_be_bytes(), &[0xff; 6], &[0; 2]];
        let length = u32::try_from(version.len()).expect("short").to_be_bytes();
        let row = [&b"\0\x01"[..], &length, version.as_bytes()].concat();
        let answer =
            [message(b'T', &column.concat()), message(b'D', &row), message(b'C', b"SHOW\0"), ready.clone()];
        stream.write_all(&answer.concat()).await?;
    }
    Ok(())
}

/// Checks that the process exits with 1 and prints this text.
async fn refuses(process: ServiceBuilder, expected: &str) {
    let finished = process.run().await;
    let output = finished.stdout + &finished.stderr;
    assert_eq!(finished.code, Some(1), "{output}");
    assert!(output.contains(expected), "{expected} is not in {output}");
}

#[tokio::test]
async fn a_redis_before_7_ends_the_start_of_the_service_and_of_a_relay() {
    let expected = "Redis is version 6.2.14, and 7.0 or later is needed";
    let port = redis_that_says("# Server\r\nredis_version:6.2.14\r\n").await;
    let outbox = Outbox::new().await;
    refuses(outbox.world.service_via(port, outbox.world.database.port()), expected).await;
    let relay = outbox.relay().env("NOTIFICATION_REDIS_MASTER_ADDR", format!("127.0.0.1:{port}"));
    refuses(relay, expected).await;
}

#[tokio::test]
async fn a_redis_that_may_not_be_asked_about_itself_ends_the_start_which_names_the_permission() {
    let outbox = Outbox::new().await;
    let mut redis = outbox.world.redis().await;
    let forbid = redis::cmd("ACL").arg(&["SETUSER", "default", "-info"]).to_owned();
    forbid.exec_async(&mut redis).await.expect("Redis is there");
    let expected = "this user has no permissions to run the 'info' command";
    refuses(outbox.relay(), expected).await;
    refuses(outbox.world.service(), expected).await;
}

#[tokio::test]
async fn a_permission_in_redis_that_a_process_lacks_ends_its_start_and_is_named() {
    let outbox = Outbox::new().await;
    let mut redis = outbox.world.redis().await;
    let forbid = redis::cmd("ACL").arg(&["SETUSER", "default", "-xadd"]).to_owned();
    forbid.exec_async(&mut redis).await.expect("Redis is there");
    refuses(outbox.relay(), "lacks permissions: XADD on notification:intents;").await;
    refuses(outbox.world.service(), "lacks permissions: XADD on notification:intents,").await;
}

#[tokio::test]
async fn a_postgresql_before_13_ends_the_start_of_every_process() {
    let expected = "PostgreSQL is version 12.22, and 13.0 or later is needed";
    let port = postgres_of("120022").await;
    let outbox = Outbox::new().await;
    refuses(outbox.world.service_via(outbox.world.redis.port(), port), expected).await;
    let relay = outbox.relay().env("NOTIFICATION_OUTBOX_DSN", outbox.database.dsn_via(port));
    refuses(relay, expected).await;
    let database = TestDatabase::empty().await;
    let state = State::new().await;
    refuses(state.process().env("STATE_PROXY_PG_URL", database.dsn_via(port)), expected).await;
}

#[tokio::test]
async fn a_relay_inside_the_service_waits_for_a_database_that_is_too_old_and_the_service_does_not() {
    let port = postgres_of("120022").await;
    let outbox = Outbox::new().await;
    let dsn = outbox.database.dsn_via(port);
    let service = outbox.service_with_relay().env("NOTIFICATION_OUTBOX_DSN", dsn).start().await;
    let body = shows(&service, "paused").await;
    let cause = body["outbox_relay"]["waiting_for"].as_str().unwrap_or_default();
    assert!(cause.contains("version 12.22"), "{body}");
    outbox.world.send(0..1).await;
    outbox.world.settled(1).await;
}
