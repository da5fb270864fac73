//! The search by any id: what is asked by a command, by HTTP or in the console leads to the same
//! notification.

use harness::{Finished, Service, turn_ready};
use serde_json::Value;

use crate::api::{OPERATOR, PRODUCER, TokensFile, body, is, read, send, with_api};
use crate::console::Browser;
use crate::outbox::*;
use crate::world::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// The ways to ask.
struct Faces<'a> {
    world: &'a World,
    service: &'a Service,
    browser: Browser,
}

impl Faces<'_> {
    async fn command(&self, id: &str, stream: Option<&str>) -> (Finished, Value) {
        let mut arguments = vec!["explain", id, "--json"];
        arguments.extend(stream.into_iter().flat_map(|stream| ["--stream", stream]));
        let finished = self.world.service().arguments(arguments).run().await;
        let document = serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{finished:?}"));
        (finished, document)
    }

    async fn api(&self, id: &str, stream: Option<&str>) -> Value {
        let stream = stream.map_or_else(String::new, |stream| format!("&stream={}", encoded(stream)));
        let answer = read(self.service, OPERATOR, &format!("/v1/find?id={}{stream}", encoded(id))).await;
        assert_eq!(answer.status, 200, "{id}: {}", answer.body);
        answer.json()
    }

    /// Asks for an id that has one match.
    async fn leads_to(&self, id: &str, stream: Option<&str>, notification: &str) {
        let (finished, document) = self.command(id, stream).await;
        assert_eq!(finished.code, Some(0), "{id}: {finished:?}");
        let by_http = self.api(id, stream).await;
        assert_eq!(document["found"], by_http["found"], "{id}");
        assert_eq!(document["found"].as_array().map(Vec::len), Some(1), "{id}: {document}");
        assert_eq!(document["found"][0]["notification_id"], notification, "{id}: {document}");
        assert_eq!(document["notifications"][0]["notification_id"], notification, "{id}");
        let stream = stream.map_or_else(String::new, |stream| format!("&stream={}", encoded(stream)));
        let path = format!("/console/find?id={}{stream}", encoded(id));
        let page = self.browser.clone().get(&self.service.api_addr(), &path).await;
        let location = page.header("location").unwrap_or_default();
        let expected = format!("/console/notifications/{notification}");
        assert!(page.status == 303 && location.starts_with(&expected), "{id}: {} {location}", page.status);
    }
}

#[tokio::test]
async fn every_id_of_an_intent_leads_to_its_notification_by_command_http_and_console() {
    let outbox = Outbox::new().await;
    let world = &outbox.world;
    let tokens = TokensFile::new(world);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_CONSOLE", "on").start().await;
    let _relay = outbox.relay().start().await;
    outbox.insert(0..1).await;
    let mut draft = turn_ready(["u-1"], "k-1", 1);
    draft.request_id = Some("r-1".to_owned());
    draft.trace_id = Some(TRACE.to_owned());
    let entry = world.add_draft(draft).await;
    let sent = send(&service, "k-http", &body(54)).await.json();
    let over_http = sent["notification_id"].as_str().expect("an id");
    world.settled(3).await;
    let of_event = format!("SELECT notification_id FROM records WHERE idempotency_key = '{}'", event_id(0));
    let from_outbox = world.column(&of_event).await.remove(0);
    let published = async |notification: &str, channel: &str| {
        let sql = format!(
            "SELECT published_entry_id FROM routes WHERE notification_id = '{notification}' AND channel = '{channel}' LIMIT 1"
        );
        world.column(&sql).await.remove(0)
    };
    let mut faces = Faces { world, service: &service, browser: Browser::default() };
    faces.browser.sign_in(&service.api_addr(), OPERATOR).await;
    for (id, notification) in [
        (entry.clone(), entry.as_str()),
        ("k-1".to_owned(), &entry),
        ("r-1".to_owned(), &entry),
        (TRACE.to_owned(), &entry),
        (format!("{entry}/push:user:u-1"), &entry),
        (format!("{entry}/email:user:u-1"), &entry),
        (format!("notification:{entry}/email:user:u-1"), &entry),
        (over_http.to_owned(), over_http),
        ("k-http".to_owned(), over_http),
        (format!("{over_http}/push:user:u-2"), over_http),
        (event_id(0), &from_outbox),
        (from_outbox.clone(), &from_outbox),
    ] {
        faces.leads_to(&id, None, notification).await;
    }
    for notification in [&entry, over_http, &from_outbox] {
        for (channel, stream) in [("push", PUSH), ("email", MAIL)] {
            let id = published(notification, channel).await;
            faces.leads_to(&id, Some(stream), notification).await;
            let all = faces.api(&id, None).await;
            let mut found = all["found"].as_array().expect("a list").iter();
            assert!(found.any(|found| found["notification_id"] == *notification), "{id}: {all}");
        }
    }

    let hold = ["hold", "--channel", "push", "--reason", "a move", "--yes", "--json"];
    let held = unhurried(world.service()).arguments(hold).run().await;
    let report: Value = serde_json::from_str(&held.stdout).unwrap_or_else(|_| panic!("{held:?}"));
    let request_id = report["request_id"].as_str().unwrap_or_else(|| panic!("{report}"));
    let (finished, document) = faces.command(request_id, None).await;
    let change = &document["found"][0];
    assert_eq!((finished.code, &change["outcome"]), (Some(0), &"change".into()), "{document}");
    assert_eq!(change["request_id"], request_id);
    assert_eq!(faces.api(request_id, None).await["found"], document["found"]);
    let page = faces.browser.get(&service.api_addr(), &format!("/console/find?id={request_id}")).await;
    let location = page.header("location").unwrap_or_default();
    assert_eq!((page.status, location), (303, &*format!("/console/actions?request_id={request_id}")));

    let (finished, document) = faces.command("no-such-id", None).await;
    assert_eq!((finished.code, &document["found"][0]["outcome"]), (Some(1), &"unknown".into()));
    let searched = document["searched"].to_string();
    for place in [
        "notifications with the idempotency key no-such-id",
        "the newest 100000 notifications",
        "the newest actions of operators",
    ] {
        assert!(searched.contains(place), "{place}: {searched}");
    }
    let page = faces.browser.get(&service.api_addr(), "/console/find?id=no-such-id").await;
    assert!(page.status == 404 && page.body.contains("Searched"), "{}", page.body);
    let refused = read(&service, PRODUCER, "/v1/find?id=k-1").await;
    is(&refused, 403, "forbidden", "");
}
