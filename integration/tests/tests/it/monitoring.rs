//! The dashboard and the alerts refer only to existing metrics of the page, sections of the runbook and
//! alerts as consequences.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::alert_rules::rules;
use crate::docs::{anchor, first_quoted, read, table};

const DASHBOARD: &str = "deploy/grafana/notification.json";

/// The names of metrics in a PromQL expression: names that are followed by neither `(` nor `=`, and that are
/// not labels of a grouping.
fn metrics(expr: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    // Values of labels are in quotation marks.
    let outside = expr.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let words = outside.split(|c| !is_part(c));
    let prefixes = ["notification_", "http_server_", "idempotency_", "process_", "state_"];
    let named = words.filter(|word| {
        prefixes.iter().any(|prefix| word.starts_with(prefix)) || *word == "up" || *word == "target_info"
    });
    let family = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"].into_iter();
        parts.filter_map(|part| name.strip_suffix(part)).next().unwrap_or(name).to_owned()
    };
    named.map(family).collect()
}

/// The metric names in Prometheus: those of the page, its own, and that of the replica.
fn known() -> BTreeSet<String> {
    let rows = table("docs/metrics.md", "metrics table");
    let page = rows.iter().map(|row| first_quoted(&row[1]).to_owned());
    page.chain(["up", "target_info"].map(str::to_owned)).collect()
}

fn check(place: &str, expr: &str, known: &BTreeSet<String>) {
    let named = metrics(expr);
    assert!(!named.is_empty(), "{place}: {expr} names no metric");
    for metric in named {
        assert!(known.contains(&metric), "{place}: {metric} is no metric");
    }
}

/// The values of every member `name`, at any depth.
fn members<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(name).and_then(Value::as_str));
            object.values().for_each(|value| members(value, name, found));
        }
        Value::Array(values) => values.iter().for_each(|value| members(value, name, found)),
        _ => {}
    }
}

#[test]
fn every_metric_of_a_rule_and_of_a_panel_is_on_the_page() {
    let known = known();
    rules().iter().for_each(|rule| check(&rule.alert, &rule.expr, &known));
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    for panel in panels {
        let mut exprs = Vec::new();
        members(&panel["targets"], "expr", &mut exprs);
        assert!(!exprs.is_empty(), "{} shows nothing", panel["title"]);
        exprs.into_iter().for_each(|expr| check(&panel["title"].to_string(), expr, &known));
    }
}

#[test]
fn every_alert_has_a_section_of_its_own_in_the_runbook_and_every_section_an_alert() {
    let page = read("docs/operations.md");
    let (_, section) = page.split_once("\n## Alerts\n").expect("the page has alerts");
    let section = section.split("\n## ").next().unwrap_or_default();
    let headings: BTreeSet<&str> = section.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let rules = rules();
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(headings, alerts);
    for rule in &rules {
        assert_eq!(rule.runbook, format!("docs/operations.md#{}", anchor(&rule.alert)));
        let strange: Vec<_> =
            rule.consequences.iter().filter(|alert| !alerts.contains(alert.as_str())).collect();
        assert!(strange.is_empty(), "{}: {strange:?} are no alerts", rule.alert);
    }
}

#[test]
fn every_alert_has_a_test_of_its_rule() {
    let tests = read("deploy/prometheus/alerts_test.yml");
    for rule in rules() {
        assert!(tests.contains(&rule.alert), "{} is in no test", rule.alert);
    }
}

/// Several installations have a job each: a sum over jobs would hide one of them.
#[test]
fn every_panel_shows_each_job_by_itself() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    for panel in dashboard["panels"].as_array().expect("panels") {
        let mut exprs = Vec::new();
        members(&panel["targets"], "expr", &mut exprs);
        for expr in exprs {
            for metric in metrics(expr) {
                for (at, _) in expr.match_indices(&metric) {
                    let after =
                        expr[at..].trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
                    assert!(after.starts_with(r#"{job=~"$job""#), "{}: {expr}", panel["title"]);
                }
            }
            let aggregations: usize = ["sum", "max", "min", "count"]
                .iter()
                .map(|name| expr.matches(&format!("{name} by (")).count())
                .sum();
            let by_job = expr.matches(" by (job)").count() + expr.matches(" by (job,").count();
            assert!(by_job > 0 && by_job == aggregations, "{}: {expr}", panel["title"]);
            for name in ["sum(", "max(", "min(", "count("] {
                assert!(!expr.contains(name), "{}: {expr}", panel["title"]);
            }
        }
    }
}

/// A rule that no test sees firing may be wrong about the metrics of a real service.
#[test]
fn every_alert_is_seen_to_fire_by_a_test_that_breaks_the_service() {
    let tests =
        ["alerts.rs", "alerts/companions.rs"].map(|file| format!("integration/tests/tests/large/{file}"));
    let tests = tests.map(|file| read(&file)).concat();
    let seen = [".sees(\"", ".sees_for(\""].into_iter().flat_map(|call| tests.split(call).skip(1));
    let seen: BTreeSet<&str> = seen.filter_map(|rest| rest.split('"').next()).collect();
    let rules = rules();
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(seen, alerts);
}

#[test]
fn the_dashboard_names_runbook_sections_that_exist_and_every_panel_has_its_place() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let alerts: BTreeSet<String> = rules().into_iter().map(|rule| rule.alert).collect();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "an id is there twice");
        let description = panel["description"].as_str().expect("every panel says what it shows");
        if let Some((_, alert)) = description.split_once("Runbook: ") {
            assert!(alerts.contains(alert.trim_end_matches('.')), "{alert}");
        }
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for (x, y) in (0..at("w")).flat_map(|x| (0..at("h")).map(move |y| (x, y))) {
            let place = (at("x") + x, at("y") + y);
            assert!(place.0 < 24 && place.1 < 38, "{} is not on the screen", panel["title"]);
            assert!(taken.insert(place), "{} covers another panel", panel["title"]);
        }
    }
}
