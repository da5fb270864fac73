//! Faults of bodies, and the order in which they are detected.

use http_server::ListenerSettings;

use crate::support::{Client, JSON, MAX_BATCH_BYTES, MAX_BODY_BYTES, settings, start};

#[tokio::test]
async fn a_body_within_the_limit_of_its_route_reaches_the_handler_complete() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    for (path, limit) in [("/length", MAX_BODY_BYTES), ("/batch", MAX_BATCH_BYTES)] {
        for length in [0, 1, 20_000, limit] {
            let answer = client.post(path, JSON, vec![b'x'; length]).await;
            assert_eq!((answer.status, answer.body), (200, format!("length {length}")));
        }
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_while_the_client_still_sends_it() {
    let server = start(settings()).await;
    for (path, limit) in [("/length", MAX_BODY_BYTES), ("/batch", MAX_BATCH_BYTES)] {
        for length in [limit + 1, 4 * limit] {
            let mut client = Client::connect(&server).await;
            let answer = client.post(path, JSON, vec![b'x'; length]).await;
            assert_eq!((answer.status, answer.problem().as_str()), (413, "body-too-large"));
        }
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_has_the_same_limit() {
    let server = start(settings()).await;
    for (length, status) in [(MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413)] {
        let mut client = Client::connect(&server).await;
        client
            .send(format!("POST /length HTTP/1.1\r\nHost: test\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n"))
            .await;
        for piece in vec![b'x'; length].chunks(1000) {
            client.send(format!("{:x}\r\n", piece.len())).await;
            client.send([piece, b"\r\n"].concat()).await;
        }
        client.send("0\r\n\r\n").await;
        assert_eq!(client.answer().await.status, status);
    }
}

#[tokio::test]
async fn only_json_in_utf_8_that_is_not_compressed_is_taken() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    for headers in [
        "Content-Type: application/json\r\n",
        "Content-Type: Application/JSON; Charset=UTF-8\r\n",
        "Content-Type: application/json;charset=\"utf-8\"\r\nContent-Encoding: identity\r\n",
    ] {
        assert_eq!(client.post("/length", headers, "{}").await.status, 200, "{headers}");
    }
    for headers in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/jsonp\r\n",
        "Content-Type: application/problem+json\r\n",
        "Content-Type: application/json; charset=latin1\r\n",
        "Content-Type: application/json; boundary=x\r\n",
        "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
        "Content-Type: application/json\r\nContent-Encoding: identity, br\r\n",
    ] {
        let answer = client.post("/length", headers, "{}").await;
        assert_eq!((answer.status, answer.problem().as_str()), (415, "unsupported-media-type"), "{headers}");
    }
    let answer = client.post("/length", JSON, b"\xff").await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"));
}

#[tokio::test]
async fn a_body_is_an_object_with_known_members_each_once() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    for (body, expected) in [
        (r#"{"name":"a"}"#, "a None"),
        (r#" {"name":"a","inner":{"number":7}} "#, "a Some(7)"),
        (r#"{"name":"a","inner":null}"#, "a None"),
    ] {
        assert_eq!(client.post("/strict", JSON, body).await.body, expected);
    }
    for body in [
        "",
        "{",
        "null",
        "[]",
        r#""a""#,
        r#"["a",null]"#,
        r#"{"name":"a"}{}"#,
        r#"{"name":1}"#,
        r#"{"inner":null}"#,
        r#"{"name":"a","extra":1}"#,
        r#"{"name":"a","name":"a"}"#,
        r#"{"name":"a","inner":[7]}"#,
        r#"{"name":"a","inner":{"number":7,"number":7}}"#,
        r#"{"name":"a","inner":{"number":256}}"#,
        r#"{"name":"a",}"#,
        "{\"name\":\"a\u{0}\"}",
        &format!("{{\"name\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000)),
    ] {
        let answer = client.post("/strict", JSON, body).await;
        let start = &body[..body.len().min(80)];
        assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"), "{start}");
    }
}

#[tokio::test]
async fn the_media_type_comes_before_the_length_and_the_length_before_the_form() {
    let server = start(settings()).await;
    for (headers, body, status) in [
        ("", vec![0xff; MAX_BODY_BYTES + 1], 415),
        (JSON, vec![0xff; MAX_BODY_BYTES + 1], 413),
        (JSON, vec![0xff; MAX_BODY_BYTES], 400),
    ] {
        let mut client = Client::connect(&server).await;
        assert_eq!(client.post("/strict", headers, body).await.status, status);
    }
}

#[tokio::test]
async fn a_client_that_waits_for_leave_to_send_gets_the_refusal_instead() {
    let server = start(settings()).await;
    let expect = format!("{JSON}Expect: 100-continue\r\n");
    let mut client = Client::connect(&server).await;
    client.begin_post("/length", &expect, 5).await;
    assert_eq!(client.answer().await.status, 100);
    client.send("12345").await;
    assert_eq!(client.answer().await.status, 200);
    client.begin_post("/length", &expect, MAX_BODY_BYTES + 1).await;
    assert_eq!(client.answer().await.status, 413);
}

#[tokio::test]
async fn large_bodies_wait_for_room_and_small_requests_do_not() {
    // In addition to the shares there is room for three of the largest bodies.
    let server = start(ListenerSettings { max_buffered_bytes: 4 * MAX_BATCH_BYTES, ..settings() }).await;
    let mut large = Vec::new();
    for _ in 0..5 {
        let mut client = Client::connect(&server).await;
        client.begin_post("/held", JSON, MAX_BATCH_BYTES).await;
        large.push(tokio::spawn(async move {
            client.send(vec![b'x'; MAX_BATCH_BYTES]).await;
            client.answer().await.status
        }));
    }
    server.wait_for_held(3).await;
    assert_eq!(Client::connect(&server).await.post("/length", JSON, "12345").await.status, 200);
    assert_eq!(server.held.available_permits(), 0, "more large bodies than there is room for");
    server.release.add_permits(5);
    for answer in large {
        assert_eq!(answer.await.expect("does not panic"), 200);
    }
}
