//! The documentation is correct: pages that name crates, files, constants, metrics or settings are compared
//! with the source.

mod limits;
mod prose;
mod tags;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files with this ending, in the folders of this project.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read") {
            let entry = entry.expect("an entry that can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("an entry has a type");
            if kind.is_dir() && !["target", "node_modules"].contains(&&*name) && !name.starts_with('.') {
                folders.push(entry.path());
            } else if kind.is_file() && name.ends_with(ending) {
                found.push(entry.path());
            }
        }
    }
    assert!(found.len() > 1, "no files end in {ending}");
    found
}

/// The rows of the table between `<!-- <name>: begin -->` and its end, without head and rule.
pub(crate) fn table(page: &str, name: &str) -> Vec<Vec<String>> {
    let text = read(page);
    let (_, rest) =
        text.split_once(&format!("<!-- {name}: begin -->")).unwrap_or_else(|| panic!("{page}: no {name}"));
    let (body, _) = rest
        .split_once(&format!("<!-- {name}: end -->"))
        .unwrap_or_else(|| panic!("{page}: {name} has no end"));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<Vec<String>> =
        body.lines().filter(|line| line.starts_with('|')).skip(2).map(cells).collect();
    assert!(!rows.is_empty(), "{page}: {name} is empty");
    rows
}

/// The parts of `text` between backticks.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

pub(crate) fn first_quoted(text: &str) -> &str {
    quoted(text).next().unwrap_or_else(|| panic!("{text:?} names nothing"))
}

struct Package {
    name: String,
    folder: String,
    /// The entries of `[dependencies]` alone: the shipped ones.
    dependencies: BTreeSet<String>,
}

fn workspace() -> Vec<Package> {
    let mut packages = Vec::new();
    for above in ["crates", "integration"] {
        for entry in fs::read_dir(Path::new(ROOT).join(above)).expect("a folder of the workspace") {
            let folder = format!("{above}/{}", entry.expect("an entry").file_name().to_string_lossy());
            let manifest = read(format!("{folder}/Cargo.toml"));
            let name =
                manifest.lines().find_map(|line| line.strip_prefix("name = ")).expect("a package has a name");
            let section = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
            let section =
                section.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
            let names =
                section.filter_map(|line| line.split(['.', '=', ' ']).next()).filter(|name| !name.is_empty());
            let dependencies = names.map(str::to_owned).collect();
            packages.push(Package { name: name.trim_matches('"').to_owned(), folder, dependencies });
        }
    }
    packages
}

#[test]
fn the_crate_table_is_the_workspace() {
    let rows = table("ARCHITECTURE.md", "crate table");
    let written: BTreeSet<String> = rows.iter().map(|row| first_quoted(&row[0]).to_owned()).collect();
    let members: BTreeSet<String> = workspace().into_iter().map(|package| package.name).collect();
    assert_eq!(written, members);
}

#[test]
fn no_crate_uses_another_that_its_row_does_not_name() {
    let packages = workspace();
    let house: BTreeSet<&String> = packages.iter().map(|package| &package.name).collect();
    let rows = table("ARCHITECTURE.md", "crate table");
    let allowed: BTreeMap<&str, &String> = rows.iter().map(|row| (first_quoted(&row[0]), &row[2])).collect();
    for package in packages.iter().filter(|package| package.folder.starts_with("crates/")) {
        let allowed: BTreeSet<&str> = quoted(allowed[package.name.as_str()]).collect();
        for used in package.dependencies.iter().filter(|name| house.contains(name)) {
            assert!(allowed.contains(used.as_str()), "{} must not use {used}", package.name);
        }
    }
}

/// The dependencies that are forbidden even if the table allows them.
#[test]
fn the_layers_stay_apart() {
    let packages = workspace();
    let house: BTreeSet<&String> = packages.iter().map(|package| &package.name).collect();
    let of_house = |name: &str| -> BTreeSet<&str> {
        let package =
            packages.iter().find(|package| package.name == name).unwrap_or_else(|| panic!("no crate {name}"));
        package.dependencies.iter().filter(|used| house.contains(used)).map(String::as_str).collect()
    };
    for (name, may_use) in [
        ("ambient", &[][..]),
        ("domain", &["ambient"]),
        ("workers", &["ambient", "domain"]),
        ("pg", &["ambient"]),
        ("lock", &["ambient", "pg"]),
        ("outbox", &["ambient", "pg"]),
        ("state", &["ambient", "http-server", "pg"]),
        ("store-postgres", &["ambient", "domain", "idempotency", "pg", "state"]),
        ("store-redis", &["domain"]),
        ("user-directory", &["domain", "state"]),
        ("election", &["ambient", "lock"]),
        ("http-server", &["ambient"]),
        ("idempotency", &["ambient", "pg"]),
        ("api", &["ambient", "domain", "http-server", "idempotency"]),
        ("console", &["ambient", "domain", "http-server", "idempotency"]),
        ("local-servers", &[]),
        ("memory-stores", &["ambient", "domain", "state"]),
    ] {
        let strange: Vec<&str> = of_house(name).into_iter().filter(|used| !may_use.contains(used)).collect();
        assert_eq!(strange, Vec::<&str>::new(), "{name} must not use these");
    }
    let domain = packages.iter().find(|package| package.name == "domain").expect("there is a domain");
    for outside in ["tokio", "tokio-postgres", "sea-query", "redis", "reqwest", "config", "tracing"] {
        assert!(!domain.dependencies.contains(outside), "domain must not use {outside}");
    }
}

/// The name of an instrument in Prometheus: by its rules, not by the library's.
fn prometheus_name(name: &str, kind: &str, unit: &str) -> String {
    let unit = match unit {
        "s" => "_seconds",
        "By" => "_bytes",
        _ => "",
    };
    let total = if kind == "counter" { "_total" } else { "" };
    format!("{}{unit}{total}", name.replace('.', "_"))
}

/// Name, kind and unit of every instrument.
#[test]
fn the_metrics_table_is_what_the_code_makes() {
    let files = [
        "crates/workers/src/metrics.rs",
        "crates/workers/src/metrics/replica.rs",
        "crates/app/src/telemetry/process.rs",
        "crates/app/src/wiring/relay/metrics.rs",
        "crates/app/src/wiring/state/metrics.rs",
    ];
    let without_tests = |file| read(file).split("#[cfg(test)]").next().unwrap_or_default().to_owned();
    let source = files.map(without_tests).concat();
    // The functions that make instruments, with their kind and unit; some name the unit after the name.
    let functions = [
        (".counter(", "counter", Some("")),
        (".gauge(", "gauge", None),
        (".age(", "gauge", Some("s")),
        (".observed_gauge(", "gauge", None),
        (".observed_age(", "gauge", Some("s")),
        (".observed_time(", "counter", Some("s")),
        (".duration(", "histogram", Some("s")),
        (".sizes(", "histogram", None),
    ];
    let mut made = BTreeMap::new();
    let prefixes = ["notification.", "http.server.", "idempotency.", "process.", "state."];
    let starts = prefixes.iter().flat_map(|prefix| {
        source.match_indices(&format!("\"{prefix}")).map(|(at, _)| at).collect::<Vec<_>>()
    });
    for at in starts {
        let mut literals = source[at..].split('"').skip(1).step_by(2);
        let name = literals.next().expect("a literal has an end");
        let (_, kind, unit) = functions
            .into_iter()
            .max_by_key(|(function, ..)| source[..at].rfind(function))
            .expect("one of them is last");
        let unit = unit.or_else(|| literals.next()).expect("a gauge has a unit");
        made.insert(name.to_owned(), [prometheus_name(name, kind, unit), kind.to_owned(), unit.to_owned()]);
    }
    let rows = table("docs/metrics.md", "metrics table");
    let written = rows
        .iter()
        .map(|row| {
            let prometheus = first_quoted(&row[1]).to_owned();
            (first_quoted(&row[0]).to_owned(), [prometheus, row[2].clone(), row[3].clone()])
        })
        .collect::<BTreeMap<_, _>>();
    assert_eq!(made, written);
}

#[test]
fn the_attributes_of_spans_are_those_of_the_page() {
    let rows = table("docs/tracing.md", "attributes table");
    let written: BTreeSet<String> = rows.iter().map(|row| first_quoted(&row[0]).to_owned()).collect();
    let source = read("crates/workers/src/traces.rs");
    let made = literals(&source, "", "#[cfg(test)]", "KeyValue::new(");
    assert_eq!(made.into_iter().collect::<BTreeSet<_>>(), written);
}

#[test]
fn every_metric_or_attribute_that_a_page_names_exists() {
    let rows = table("docs/metrics.md", "metrics table");
    let attributes = table("docs/tracing.md", "attributes table");
    let names: BTreeSet<&str> = rows.iter().chain(&attributes).map(|row| first_quoted(&row[0])).collect();
    for page in files(".md") {
        let text = fs::read_to_string(&page).expect("a page that can be read");
        // The changelog contains former names.
        for name in
            quoted(&text).filter(|name| name.starts_with("notification.") && !page.ends_with("CHANGELOG.md"))
        {
            assert!(names.contains(name), "{} names {name}, which is no metric", page.display());
        }
    }
}

#[test]
fn every_variable_that_a_page_names_is_a_knob_or_a_retired_one() {
    let config = read("docs/config.md");
    let knobs = config.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    // (name, what to do instead)
    let retired = read("crates/app/src/config/knobs.rs");
    let retired =
        retired.split('(').filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    let known: BTreeSet<&str> = knobs.chain(retired).collect();
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let mut named = 0;
    for page in files(".md") {
        let text = fs::read_to_string(&page).expect("a page that can be read");
        for (at, _) in text.match_indices("NOTIFICATION_") {
            let name = text[at..].split(|c| !is_part(c)).next().unwrap_or_default();
            // A secret may be in a file, which another variable names.
            let name = name.strip_suffix("_FILE").filter(|_| !known.contains(name)).unwrap_or(name);
            // The prefix of all of them, and one for each type with administrators.
            if name != "NOTIFICATION_" && !name.starts_with("NOTIFICATION_ADMIN_EMAILS_") {
                named += 1;
                assert!(known.contains(name), "{} names {name}, which is no knob", page.display());
            }
        }
    }
    assert!(named > 0, "no page names a variable");
}

/// The first column of a table of names.
fn names(page: &str, name: &str) -> Vec<String> {
    table(page, name).iter().map(|row| first_quoted(&row[0]).to_owned()).collect()
}

/// The string literals of `source` between `begin` and the next `end` that follow `before`.
fn literals(source: &str, begin: &str, end: &str, before: &str) -> Vec<String> {
    let (_, rest) = source.split_once(begin).unwrap_or_else(|| panic!("no {begin}"));
    let body = rest.split(end).next().unwrap_or_default();
    let found =
        body.split(before).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    found.map(str::to_owned).collect()
}

#[test]
fn the_page_for_producers_has_every_field_and_every_failure_code_in_order() {
    let source = read("crates/domain/src/intent/envelope.rs");
    let constants = literals(&source, "", "#[cfg(test)]", ": &str =");
    let fields = names("docs/producers.md", "intent fields");
    assert_eq!(fields.iter().collect::<BTreeSet<_>>(), constants.iter().collect());
    let codes =
        literals(&read("crates/domain/src/malformed_intent.rs"), "fn as_str(self)", "\n    }\n", "=>");
    assert_eq!(names("docs/producers.md", "failure codes"), codes);
}

#[test]
fn the_page_for_consumers_has_every_field_of_both_entries_in_order() {
    let source = read("crates/domain/src/outbound.rs");
    let optional = literals(&source, "let optional = [", "];", "(");
    let optional =
        ["request_id".to_owned()].into_iter().chain(optional.into_iter().filter(|name| name != "request_id"));
    let optional: Vec<String> = optional.collect();
    for (function, name) in
        [("fn client_event(", "client event"), ("fn delivery_command(", "delivery command")]
    {
        let mut fields = literals(&source, function, "\n}\n", "\n        (");
        fields.extend(optional.clone());
        assert_eq!(names("docs/consumers.md", name), fields, "{function}");
    }
}

#[test]
fn every_message_of_the_runbook_is_logged() {
    let logged: Vec<String> =
        table("docs/logging.md", "messages").into_iter().map(|row| row[2].clone()).collect();
    let page = read("docs/operations.md");
    let (_, runbook) = page.split_once("\n## Runbook\n").expect("the page has a runbook");
    let symptoms = runbook.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let messages: Vec<&str> =
        symptoms.flat_map(quoted).filter(|symptom| symptom.contains(' ') && !symptom.contains('"')).collect();
    assert!(messages.len() > 5, "the runbook names messages");
    for message in messages {
        assert!(logged.iter().any(|line| line.starts_with(message)), "{message:?} is in no log line");
    }
}

#[test]
fn the_first_pages_are_short() {
    for (page, most) in [("README.md", 120), ("ARCHITECTURE.md", 200)] {
        let lines = read(page).lines().count();
        assert!(lines <= most, "{page} has {lines} lines and may have {most}");
    }
}

#[test]
fn every_decision_is_in_the_index() {
    let index = read("docs/adr/README.md");
    for entry in fs::read_dir(Path::new(ROOT).join("docs/adr")).expect("there are decisions") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(
            name == "README.md" || index.contains(&format!("]({name})")),
            "docs/adr/README.md does not link {name}"
        );
    }
}

#[test]
fn every_relative_link_leads_to_a_file() {
    for page in files(".md") {
        let text = fs::read_to_string(&page).expect("a page that can be read");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || target.contains("://") {
                continue;
            }
            let file = page.parent().expect("a file is in a folder").join(path);
            assert!(file.exists(), "{} links {target}, which is not there", page.display());
        }
    }
}

/// The anchor of a heading, as web views of repositories make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[test]
fn every_anchor_that_a_link_names_is_a_heading() {
    for page in files(".md") {
        let text = fs::read_to_string(&page).expect("a page that can be read");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let Some((path, wanted)) = target.split_once('#').filter(|_| !target.contains("://")) else {
                continue;
            };
            let file = match path {
                "" => page.clone(),
                path => page.parent().expect("a file is in a folder").join(path),
            };
            let text = fs::read_to_string(&file).expect("a page that can be read");
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            assert!(
                headings.any(|line| anchor(line.trim_start_matches('#').trim()) == wanted),
                "{} links {target}, which has no such heading",
                page.display()
            );
        }
    }
}

/// Pages name files as `crates/…`; moving a file requires changing them.
#[test]
fn every_path_that_a_page_names_exists() {
    for page in files(".md") {
        let text = fs::read_to_string(&page).expect("a page that can be read");
        let code_left_out: String = text.split("```").step_by(2).collect();
        let ours = ["crates/", "docs/", "integration/", "migrations/"];
        let paths = quoted(&code_left_out).filter(|path| ours.iter().any(|start| path.starts_with(start)));
        for path in paths.filter(|path| !path.contains(['*', '<', '…', ' '])) {
            assert!(
                Path::new(ROOT).join(path).exists(),
                "{} names {path}, which is not there",
                page.display()
            );
        }
    }
}
