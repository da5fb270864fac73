//! Environment variables: lines of `NAME=value` that replace those of a valid configuration.

use std::collections::BTreeMap;

use app::config::knobs::KNOBS;
use app::config::{Config, Loaded, RelayProcessConfig, Section, StateConfig, load};

use crate::Target;
use crate::text::{SECRET, names_a_device};

pub(super) const TARGET: Target = Target { name: "configuration", max_bytes: 1024, check };

/// The variables that are required, and a catalogue that is small.
const GIVEN: [(&str, &str); 6] = [
    ("NOTIFICATION_CATALOG_PATH", concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/catalogue/administrators")),
    ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
    ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://n:s@db:5432/galaxy?search_path=notification"),
    ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users:8080"),
    ("STATE_PROXY_PG_URL", "postgres://s:s@db/galaxy"),
    ("CONNECTOR_SOCKET", "/run/s.sock"),
];
/// The mask of a secret.
const MASK: &str = "****";

type Variables = BTreeMap<String, String>;

fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if names_a_device(text) {
        return;
    }
    let given = GIVEN.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let lines = text.split('\n').filter_map(|line| line.split_once('='));
    let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let variables: Variables = given.into_iter().chain(lines).collect();
    check_section::<Config>(&variables);
    check_section::<StateConfig>(&variables);
    check_section::<RelayProcessConfig>(&variables);
}

fn check_section<C: Section + std::fmt::Debug>(variables: &Variables) {
    let shown = match load::<C>(variables.clone()) {
        Ok(loaded) => {
            check_effective(&loaded, variables);
            format!("{loaded:?}")
        }
        Err(errors) => {
            assert!(!errors.problems.is_empty());
            for problem in &errors.problems {
                let (line, variable) = (problem.to_string(), problem.variable());
                assert!(!variable.is_empty() && line.starts_with(variable), "{line}");
                assert!(line.len() > variable.len() + 1, "{line} has no reason");
            }
            format!("{errors} {errors:?}")
        }
    };
    assert!(!shown.contains(SECRET) || is_shown(variables), "a secret is shown: {shown}");
}

/// Returns true if a variable may be shown that has the secret, or that shows a part of a connection string.
fn is_shown(variables: &Variables) -> bool {
    let is_secret =
        |name: &str| KNOBS.iter().any(|knob| knob.name == name && knob.secret) && name.ends_with("PASSWORD");
    variables.iter().any(|(name, value)| name.contains(SECRET) || value.contains(SECRET) && !is_secret(name))
}

/// Checks that the values in effect are those of a configuration that has the same in effect.
fn check_effective<C: Section + std::fmt::Debug>(loaded: &Loaded<C>, variables: &Variables) {
    let value = |name: &str, value: &String| match value == MASK {
        true => variables.get(name).cloned().unwrap_or_default(),
        false => value.clone(),
    };
    // Connection strings are shown without escapes.
    let has_escapes = variables.values().any(|value| value.contains(['%', '&', '\'', '\\', ' ', '+', ';']));
    let effective = loaded.effective.iter();
    let again = effective.map(|(name, shown)| (name.clone(), value(name, shown))).collect::<Variables>();
    if has_escapes || variables.keys().any(|name| name.ends_with("_FILE")) {
        return;
    }
    match load::<C>(again) {
        Ok(again) => assert_eq!(again.effective, loaded.effective, "shown, it is another configuration"),
        Err(errors) => panic!("shown, it is no configuration: {errors}"),
    }
}
