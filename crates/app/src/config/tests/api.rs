//! The variables of the HTTP API and of the console.

use super::*;

const API_ON: (&str, &str) = ("NOTIFICATION_API_HTTP_ADDR", ":8093");

/// Creates a file with this text, and returns it with its path.
fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("it can be written");
    let path = file.path().to_str().expect("a path in UTF-8").to_owned();
    (file, path)
}

#[test]
fn the_api_is_off_without_an_address_and_needs_a_tokens_file_with_one() {
    assert!(loaded(&[]).config.api.is_none());
    let report = errors(&[API_ON]);
    assert!(report.starts_with("error: NOTIFICATION_API_TOKENS_FILE is required and not set"), "{report}");
    assert_eq!(report.lines().count(), 1, "{report}");

    let (_kept, empty) = file("");
    let api = loaded(&[API_ON, ("NOTIFICATION_API_TOKENS_FILE", &empty)]).config.api.expect("is on");
    assert_eq!((api.addr.port, api.limits.max_connections, api.limits.max_body_bytes), (8093, 1024, 1 << 20));
    assert_eq!((api.limits.max_batch_body_bytes, api.limits.max_buffered_bytes), (8 << 20, 64 << 20));
    assert_eq!(api.limits.timeouts.request, Duration::from_secs(10));
}

#[test]
fn a_tokens_file_that_is_wrong_stops_the_start_and_a_producer_without_a_type_is_a_warning() {
    let (_kept, wrong) = file("[[token]]\nname = \"a\"\n[[token]]\nname = \"b\"\nrole = \"king\"\n");
    let report = errors(&[API_ON, ("NOTIFICATION_API_TOKENS_FILE", &wrong)]);
    for part in [&*wrong, "entry 1 (a) needs sha256", "entry 2 (b) has a wrong role"] {
        assert!(report.contains(part), "{report}");
    }
    let missing = errors(&[API_ON, ("NOTIFICATION_API_TOKENS_FILE", "/nowhere/tokens.toml")]);
    assert!(missing.contains("/nowhere/tokens.toml cannot be read: No such file"), "{missing}");

    let hash = "0".repeat(64);
    let (_kept, odd) =
        file(&format!("[[token]]\nname = \"a\"\nsha256 = \"{hash}\"\nproducer = \"postman\"\n"));
    let warnings = loaded(&[API_ON, ("NOTIFICATION_API_TOKENS_FILE", &odd)]).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("the token a is for the producer postman"), "{warnings:?}");
}

#[test]
fn times_of_the_idempotency_store_are_bounded_as_the_store_bounds_them() {
    let (_kept, empty) = file("");
    let tokens = ("NOTIFICATION_API_TOKENS_FILE", &*empty);
    for (name, value, complaint) in [
        ("NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL", "24h1ms", "1ms to 24h"),
        ("NOTIFICATION_IDEMPOTENCY_TTL", "8784h1ms", "1ms to 8784h"),
    ] {
        let report = errors(&[API_ON, tokens, (name, value)]);
        assert_eq!(report.lines().count(), 1, "{report}");
        assert!(report.contains(complaint), "{report}");
    }
}

#[test]
fn the_variables_of_the_api_are_checked_against_each_other() {
    let (_kept, empty) = file("");
    let tokens = ("NOTIFICATION_API_TOKENS_FILE", &*empty);
    let cases = [
        ("NOTIFICATION_API_HTTP_ADDR", ":8092", "is the address of NOTIFICATION_INTERNAL_HTTP_ADDR"),
        ("NOTIFICATION_API_HTTP_ADDR", "127.0.0.1:8092", "is the address of NOTIFICATION_INTERNAL_HTTP_ADDR"),
        ("NOTIFICATION_API_TLS_CERT_FILE", &empty, "NOTIFICATION_API_TLS_KEY_FILE is not set"),
        ("NOTIFICATION_API_TLS_KEY_FILE", &empty, "NOTIFICATION_API_TLS_CERT_FILE is not set"),
        ("NOTIFICATION_API_REQUEST_TIMEOUT", "50.001s", "NOTIFICATION_API_REQUEST_TIMEOUT + 10s"),
        ("NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL", "19.999s", "NOTIFICATION_API_REQUEST_TIMEOUT + 10s"),
        ("NOTIFICATION_API_DRAIN_DELAY", "31s", "NOTIFICATION_SHUTDOWN_TIMEOUT is 30s"),
        ("NOTIFICATION_API_MAX_BUFFERED_BYTES", "16777215", "at least 16777216, twice the largest body"),
    ];
    for (name, value, complaint) in cases {
        let api_on = if name == API_ON.0 { (name, value) } else { API_ON };
        let report = errors(&[api_on, tokens, (name, value)]);
        assert_eq!(report.lines().count(), 1, "{report}");
        assert!(report.contains(complaint), "{report}");
    }
    for (name, value) in [
        ("NOTIFICATION_API_HTTP_ADDR", ":0"),
        ("NOTIFICATION_API_REQUEST_TIMEOUT", "50s"),
        ("NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL", "24h"),
        ("NOTIFICATION_API_MAX_BUFFERED_BYTES", "16777216"),
    ] {
        let api_on = if name == API_ON.0 { (name, value) } else { API_ON };
        loaded(&[api_on, tokens, (name, value), ("NOTIFICATION_INTERNAL_HTTP_ADDR", ":0")]);
    }
}

#[test]
fn a_certificate_without_its_key_stops_the_start() {
    let (_kept, empty) = file("");
    let report = errors(&[
        API_ON,
        ("NOTIFICATION_API_TOKENS_FILE", &empty),
        ("NOTIFICATION_API_TLS_CERT_FILE", &empty),
        ("NOTIFICATION_API_TLS_KEY_FILE", "/nowhere/key.pem"),
    ]);
    assert!(
        report.contains("NOTIFICATION_API_TLS_CERT_FILE cannot be used: /nowhere/key.pem cannot be read"),
        "{report}"
    );
}

#[test]
fn the_console_is_off_unless_it_is_turned_on_beside_the_api() {
    let (_kept, empty) = file("");
    let tokens = ("NOTIFICATION_API_TOKENS_FILE", &*empty);
    let on = ("NOTIFICATION_CONSOLE", "on");
    assert!(!loaded(&[API_ON, tokens]).config.api.expect("is on").console);
    let proxies = ("NOTIFICATION_API_TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.1");
    let loaded = loaded(&[API_ON, tokens, on, proxies]);
    assert_eq!(effective(&loaded, proxies.0), "10.0.0.0/8,192.0.2.1/32");
    assert!(loaded.config.api.expect("is on").console);
    let report = errors(&[on]);
    assert!(
        report.starts_with("error: NOTIFICATION_CONSOLE is on, but the console is served where"),
        "{report}"
    );
    for (name, value) in [("NOTIFICATION_CONSOLE", "yes"), ("NOTIFICATION_API_TRUSTED_PROXIES", "proxy")] {
        assert!(errors(&[API_ON, tokens, (name, value)]).contains(name), "{name}");
    }
}
