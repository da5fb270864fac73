//! Small texts from outside: ids, times, durations, addresses, names, headers. One text for all of them.

use std::fmt::Display;
use std::str::FromStr;

use ambient::Timestamp;
use app::config::{HttpAddr, RedisAddr, ReplicaId, duration};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Request};
use domain::entry::EntryId;
use domain::malformed_intent::{KeptFields, read_fields, text_of, whole_fields};
use domain::query::SearchName;
use domain::receipt::{Receipt, Report};
use domain::route::RouteStatus;
use domain::trace_parent::TraceParent;
use http_server::{Peer, TrustedProxies, has_media_type, is_compressed};
use outbox::{ChannelName, RelayId};
use state::IndexSpec;
use state::query::Instant;
use state::query::expressions::{IndexType, Member};

use crate::Target;

pub(super) const TARGET: Target = Target { name: "texts", max_bytes: 1024, check };

/// The most bytes of shown text.
const MAX_SHOWN: usize = 100;

fn check(input: &[u8]) {
    let (shown, is_whole) = text_of(input, MAX_SHOWN);
    assert!(shown.len() <= MAX_SHOWN && (!is_whole || shown.len() >= input.len()));
    check_headers(input);
    let Ok(text) = str::from_utf8(input) else { return };
    check_same::<EntryId>(text);
    check_same::<Timestamp>(text);
    check_same::<HttpAddr>(text);
    check_same::<RedisAddr>(text);
    check_names(text);
    check_times(text);
    check_stored(text);
}

/// Checks that a value is printed as a text that is parsed as the same value.
fn check_same<T: FromStr + Display + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} is printed as {shown:?}");
    }
}

/// Checks that names are taken unchanged, and lists as they are printed.
fn check_names(text: &str) {
    let taken = [
        outbox::TableName::parse(text).ok().map(|name| name.to_string()),
        state::TableName::parse(text).ok().map(|name| name.to_string()),
        ReplicaId::parse(text).ok().map(|id| id.to_string()),
        RelayId::parse(text).ok().map(|id| id.as_str().to_owned()),
        ChannelName::parse(text).ok().map(|name| name.as_str().to_owned()),
        Member::new(text).map(|member| member.as_str().to_owned()),
        IndexType::parse(text).map(|kind| kind.as_str().to_owned()),
        text.parse::<RouteStatus>().ok().map(|status| status.as_str().to_owned()),
    ];
    assert!(taken.iter().flatten().all(|name| name == text), "{text:?} is taken as {taken:?}");
    if let Some(SearchName::Payload(member)) = SearchName::parse(text) {
        assert!(Member::new(member).is_some() && text.ends_with(member));
    }
    match IndexSpec::parse_list(text) {
        Ok(specs) => {
            let shown = specs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            assert_eq!(IndexSpec::parse_list(&shown), Ok(specs), "{text:?} is printed as {shown:?}");
        }
        Err(errors) => assert!(!errors.reasons().is_empty()),
    }
    if let Ok(proxies) = text.parse::<TrustedProxies>() {
        let shown = proxies.to_string();
        let again = shown.parse::<TrustedProxies>().map(|proxies| proxies.to_string());
        assert_eq!(again.as_ref(), Ok(&shown), "{text:?} is printed as {shown:?}");
    }
}

fn check_times(text: &str) {
    if let Ok(length) = duration::parse(text) {
        let shown = duration::format(length);
        assert_eq!(duration::parse(&shown), Ok(length), "{text:?} is printed as {shown:?}");
    }
    let time = text.parse::<Timestamp>();
    if let Some(instant) = Instant::parse(text) {
        assert_eq!(instant.as_str(), text);
        if let Ok(expected) = Timestamp::from_micros(instant.as_micros()) {
            assert_eq!(time, Ok(expected), "two parsers read {text:?} differently");
        }
    }
    if let Some(parent) = TraceParent::parse(text) {
        let (trace_id, span_id) = (hex::encode(parent.trace_id), hex::encode(parent.span_id));
        let again = format!("00-{trace_id}-{span_id}-0{}", u8::from(parent.sampled));
        assert_eq!(TraceParent::parse(&again), Some(parent));
        assert!(text.contains(&trace_id) && text.contains(&span_id));
    }
}

/// Checks JSON that another program may have written into a table.
fn check_stored(text: &str) {
    if let Ok(receipt) = Receipt::from_json(text) {
        assert_eq!(Receipt::from_json(&receipt.to_json()).ok(), Some(receipt));
    }
    if let Ok(report) = serde_json::from_str::<Report>(text) {
        let again = serde_json::to_string(&report).expect("it is JSON");
        assert_eq!(serde_json::from_str(&again).ok(), Some(report));
    }
    match (read_fields(text), whole_fields(text)) {
        (None, whole) => assert_eq!(whole, None),
        (Some(parts), Some(whole)) => {
            assert!(
                parts.iter().flat_map(|(name, value)| [name, value]).all(|part| part.not_kept().is_none())
            );
            let again = KeptFields::of(whole.clone());
            assert_eq!(whole_fields(&again.text()), Some(whole));
        }
        (Some(parts), None) => {
            let mut all = parts.iter().flat_map(|(name, value)| [name, value]);
            assert!(parts.is_empty() || all.any(|part| part.not_kept().is_some()));
        }
    }
}

/// Checks headers that a client or a proxy may write.
fn check_headers(input: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(input) else { return };
    let headers: HeaderMap = [(CONTENT_TYPE, value.clone())].into_iter().collect();
    if has_media_type(&headers, "application/json") {
        assert!(input.trim_ascii_start().to_ascii_lowercase().starts_with(b"application/json"));
    }
    assert!(!is_compressed(&headers));
    let (mut head, ()) = Request::new(()).into_parts();
    head.headers.insert("x-forwarded-for", value.clone());
    head.headers.insert("x-forwarded-proto", value);
    let addr = |text: &str| text.parse().ok();
    let proxies: TrustedProxies = "10.0.0.0/8".parse().unwrap_or_default();
    for (peer, is_trusted) in [("192.0.2.1", false), ("10.0.0.1", true)] {
        head.extensions.insert(Peer { addr: addr(peer), tls: false });
        let client = proxies.client(&head);
        assert!(client.addr.is_some() && (is_trusted || client.addr == addr(peer)));
        assert!(is_trusted || !client.https, "an untrusted client chooses its protocol");
    }
}
