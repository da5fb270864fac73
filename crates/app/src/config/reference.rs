//! The page docs/config.md, generated from the list of variables.

use super::knob::Knob;
use super::knobs::{AUDIENCE, KNOBS, RETIRED};
use super::minimums::{MINIMUMS, Minimum};

const HEAD: &str = "\
# Configuration

<!-- Generated from crates/app/src/config/knobs.rs by `UPDATE_DOCS=1 cargo test -p app`; a test fails when it drifts. -->

The service is configured by environment variables alone. `notification check-config` checks them and prints what is
in effect, secrets masked. Everything that is wrong is reported at once, and the exit code is 2.

* An empty variable counts as not set. White space around a value is an error.
* A secret may be in a file instead: the variable with `_FILE` after its name gives the path. The file is
  read once, at start, and one line break at its end is dropped. An empty file is an error, and so is setting both variables.
* A duration is written as in Go: `250ms`, `1.5s`, `1h30m`, `720h`. The units are ns, us, ms, s, m and h.
* Words may be in upper or lower case. Items of a list may have spaces around them.
* `migrate` reads only the section PostgreSQL; `send` only Redis, `NOTIFICATION_INTENTS_STREAM` and
  `NOTIFICATION_CATALOG_PATH`; `outbox` only `NOTIFICATION_OUTBOX_DSN` and `NOTIFICATION_OUTBOX_TABLE`. `relay` reads the sections Outbox relay, Redis,
  Internal HTTP and OpenTelemetry, `NOTIFICATION_POSTGRES_OPERATION_TIMEOUT`, `NOTIFICATION_INTENTS_STREAM`, `NOTIFICATION_CATALOG_PATH`,
  `NOTIFICATION_PUBLISH_DEDUPE_TTL`, `NOTIFICATION_REPUBLISH_WINDOW`, `NOTIFICATION_SHUTDOWN_TIMEOUT` and the variables of the log. `state` reads the sections State store and
  OpenTelemetry and the variables of the log; no other command reads the section State store, and `check-config` if one of its variables is set.
* A `NOTIFICATION_` or `STATE_PROXY_` variable that is not listed here has no effect and gives a warning.
";

const ADMINS: &str = "\
The recipients of a notification type for administrators are in a variable of their own:
`NOTIFICATION_ADMIN_EMAILS_` and the type in upper case, dots turned to underscores, such as
`NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED`. It takes e-mail addresses, separated by commas. Without it the
notifications of that type are recorded and not sent.
";

const OTEL: &str = "\
The SDK reads the other standard `OTEL_*` variables by itself: `OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_BSP_*`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_EXPORTER_OTLP_TIMEOUT`, the last two also for
one signal (`OTEL_EXPORTER_OTLP_TRACES_HEADERS`). Compression is not built in.
";

const OTHERS: &str = "\
* The three streams have three different names.
* Exactly one of `NOTIFICATION_REDIS_MASTER_ADDR`, `NOTIFICATION_REDIS_SENTINEL_ADDRS` and `NOTIFICATION_REDIS_CLUSTER_ADDRS` is set. `NOTIFICATION_REDIS_SENTINEL_ADDRS` and `NOTIFICATION_REDIS_SENTINEL_MASTER` are
  set together or not at all. `rediss://` is before each address of a list, or before none. With `NOTIFICATION_REDIS_CLUSTER_ADDRS`, `NOTIFICATION_REDIS_DB` is 0.
* `NOTIFICATION_API_TLS_CERT_FILE` and `NOTIFICATION_API_TLS_KEY_FILE` are set together or not at all.
* With `NOTIFICATION_API_HTTP_ADDR`, which differs from `NOTIFICATION_INTERNAL_HTTP_ADDR`, `NOTIFICATION_API_TOKENS_FILE` is required. The
  files are read by `check-config` too.
* `NOTIFICATION_API_MAX_BUFFERED_BYTES` ≥ 2 times `NOTIFICATION_API_MAX_BODY_BYTES` and `NOTIFICATION_API_MAX_BATCH_BODY_BYTES`: no such body
  could be read otherwise.
* With `NOTIFICATION_OUTBOX_DSN`, and in `relay`: mode `intents` needs a `NOTIFICATION_OUTBOX_PRODUCER` that a type of the catalogue allows, and
  `NOTIFICATION_OUTBOX_TYPES` has only types that allow it; mode `streams` needs `NOTIFICATION_OUTBOX_STREAMS` and takes no
  `NOTIFICATION_OUTBOX_TYPES`. Without it, no duration of the section Outbox relay is checked against another.
* In `state`, one of `CONNECTOR_SOCKET` and `STATE_PROXY_HTTP_ADDR` is required. `STATE_PROXY_TOKENS_FILE` is required unless the latter is
  loopback (`localhost`, `127.0.0.0/8`, `::1`).
";

/// The content of docs/config.md.
pub fn page() -> String {
    let sections = KNOBS.chunk_by(|one, next| one.section == next.section);
    let sections: String = sections.map(section).collect();
    [HEAD, &sections, &minimums(), &retired()].concat()
}

fn section(knobs: &[Knob]) -> String {
    let title = knobs[0].section;
    let rows: String = knobs.iter().map(row).collect();
    let below = match title {
        AUDIENCE => ["\n", ADMINS].concat(),
        "OpenTelemetry" => ["\n", OTEL].concat(),
        _ => String::new(),
    };
    format!(
        "\n## {title}\n\n| variable | default | takes | what it is for |\n|---|---|---|---|\n{rows}{below}"
    )
}

fn row(knob: &Knob) -> String {
    let default = match knob.default {
        _ if knob.required => "required".to_owned(),
        "" => "empty".to_owned(),
        default => format!("`{default}`"),
    };
    let shown = match knob.file_variable() {
        Some(variable) => format!(" Shown masked; `{variable}` may name a file that holds it."),
        None => String::new(),
    };
    format!("| `{}` | {default} | {} | {}{shown} |\n", knob.name, knob.takes, knob.what)
}

fn minimums() -> String {
    let line = |minimum: &Minimum| {
        let sum = minimum.sum(|knob| format!("`{}`", knob.name));
        format!("* `{}` ≥ {sum}: {}.\n", minimum.knob.name, minimum.because)
    };
    let lines: String = MINIMUMS.iter().map(line).collect();
    format!("\n## Checked against each other\n\n{lines}{OTHERS}")
}

fn retired() -> String {
    let line = |(name, instead): &(&str, &str)| format!("* `{name}`: {instead}.\n");
    let lines: String = RETIRED.iter().map(line).collect();
    format!("\n## Retired\n\nA retired variable that is set stops the start.\n\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::knobs::ADMIN_EMAILS_PREFIX;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");

    #[test]
    fn the_page_is_what_the_program_generates() {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(PATH, page()).expect("docs/config.md can be written");
        }
        let written = std::fs::read_to_string(PATH).expect("docs/config.md is there");
        assert!(
            written == page(),
            "docs/config.md has drifted: UPDATE_DOCS=1 cargo test -p app writes it again"
        );
    }

    #[test]
    fn the_page_names_the_administrators_variables_as_they_are() {
        assert!(ADMINS.contains(ADMIN_EMAILS_PREFIX));
    }
}
