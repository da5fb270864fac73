//! The rules of the alerts, as operators get them.

use std::collections::BTreeSet;

pub(crate) const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/alerts.yml");

/// One rule as text: the test needs no other part of YAML.
#[derive(Debug, Default)]
pub(crate) struct Rule {
    pub(crate) alert: String,
    pub(crate) expr: String,
    pub(crate) runbook: String,
    pub(crate) consequences: BTreeSet<String>,
}

pub(crate) fn rules() -> Vec<Rule> {
    let text = std::fs::read_to_string(RULES).expect("the rules are there");
    let after = |rule: &str, key: &str| {
        let mut lines = rule.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
        lines.next().unwrap_or_else(|| panic!("{rule} has no {key}")).trim_matches('"').to_owned()
    };
    let rules = text.split("- alert: ").skip(1).map(|rule| Rule {
        alert: rule.lines().next().unwrap_or_default().to_owned(),
        expr: after(rule, "expr"),
        runbook: after(rule, "runbook_url"),
        consequences: after(rule, "consequences")
            .split(", ")
            .filter(|alert| !alert.is_empty())
            .map(str::to_owned)
            .collect(),
    });
    let rules: Vec<Rule> = rules.collect();
    assert!(rules.len() > 5, "{rules:?}");
    rules
}
