//! What is written down is true: pages that name crates, files, constants, metrics or knobs are compared with the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file with this ending, in the folders that are ours.
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
fn table(page: &str, name: &str) -> Vec<Vec<String>> {
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

/// What stands between backticks in `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn first_quoted(text: &str) -> &str {
    quoted(text).next().unwrap_or_else(|| panic!("{text:?} names nothing"))
}

struct Package {
    name: String,
    folder: String,
    /// `[dependencies]` alone: what is shipped.
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

/// The arrows that hold whatever the table says.
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
        ("store-postgres", &["ambient", "domain", "pg"]),
        ("store-redis", &["ambient", "domain"]),
        ("directory", &["ambient", "domain"]),
        ("local-servers", &[]),
    ] {
        let strange: Vec<&str> = of_house(name).into_iter().filter(|used| !may_use.contains(used)).collect();
        assert_eq!(strange, Vec::<&str>::new(), "{name} must not use these");
    }
    let domain = packages.iter().find(|package| package.name == "domain").expect("there is a domain");
    for outside in ["tokio", "tokio-postgres", "sea-query", "redis", "reqwest", "config", "tracing"] {
        assert!(!domain.dependencies.contains(outside), "domain must not use {outside}");
    }
}

#[test]
fn the_metrics_table_is_what_the_workers_make() {
    let source = read("crates/workers/src/metrics.rs");
    let mut made = BTreeMap::new();
    for (at, _) in source.match_indices("\"notification.") {
        let name = source[at + 1..].split('"').next().expect("a literal has an end");
        let kinds = ["counter(", "gauge(", "histogram("];
        let kind =
            kinds.into_iter().max_by_key(|kind| source[..at].rfind(kind)).expect("one of them is last");
        made.insert(name.to_owned(), kind.trim_end_matches('(').to_owned());
    }
    let rows = table("README.md", "metrics table");
    let written = rows.iter().map(|row| (first_quoted(&row[0]).to_owned(), row[1].clone())).collect();
    assert_eq!(made, written);
}

/// Written anew by `UPDATE_DOCS=1 cargo test -p integration-tests`.
#[test]
fn the_knobs_of_the_readme_are_those_of_the_configuration_page() {
    let mut expected = "| variable | default | what it is for |\n|---|---|---|\n".to_owned();
    let page = read("docs/config.md");
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        expected.push_str(&format!("| {} | {} | {} |\n", cells[0], cells[1], cells[3]));
    }
    let readme = read("README.md");
    let (begin, end) = ("<!-- config table: begin -->\n", "<!-- config table: end -->");
    let (before, rest) = readme.split_once(begin).expect("README.md has a table of knobs");
    let (written, after) = rest.split_once(end).expect("the table has an end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let renewed = [before, begin, &expected, end, after].concat();
        fs::write(Path::new(ROOT).join("README.md"), renewed).expect("README.md can be written");
    } else {
        assert_eq!(written, expected);
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

/// Pages speak of files as `crates/…`; a file that was moved takes its pages along.
#[test]
fn every_path_that_a_page_names_is_there() {
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

/// A constant's value, times in milliseconds: `4 * 1024`, `1 << 20`, `Duration::from_secs(10)`.
fn value_in_source(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(secs) = text.strip_prefix("Duration::from_secs(") {
        return Some(value_in_source(secs.strip_suffix(')')?)? * 1_000);
    }
    if let Some(millis) = text.strip_prefix("Duration::from_millis(") {
        return value_in_source(millis.strip_suffix(')')?);
    }
    if let Some((left, right)) = text.split_once(" << ") {
        return Some(value_in_source(left)? << value_in_source(right)?);
    }
    text.split(" * ").map(|factor| factor.replace('_', "").parse::<u64>().ok()).product()
}

/// The same as a page says it: `4 KiB`, `10 s`, `1,000 characters`.
fn value_on_page(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "" | "bytes" | "characters" | "ms" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "s" => 1_000,
        "days" => 24 * 60 * 60 * 1_000,
        _ => return None,
    };
    Some(number.replace(',', "").parse::<u64>().ok()? * factor)
}

/// The constants of a source file without its unit tests: name, type and value as written.
fn constants(source: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    code.split("const ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(": ")?;
        let (kind, rest) = rest.split_once(" = ")?;
        Some((name, kind, rest.split_once(';')?.0))
    })
}

#[test]
fn every_limit_is_a_constant_of_this_value_where_the_table_says() {
    for row in table("ARCHITECTURE.md", "limits table") {
        let (name, file) = (first_quoted(&row[0]), first_quoted(&row[3]));
        let source = read(file);
        let (_, _, written) = constants(&source)
            .find(|(constant, _, _)| *constant == name)
            .unwrap_or_else(|| panic!("{file} has no constant {name}"));
        let value = value_in_source(written);
        assert!(value.is_some(), "{file}: {name} is {written}, which this test cannot read");
        assert_eq!(value_on_page(&row[1]), value, "{name} in {file} is {written}");
    }
}

#[test]
fn every_time_and_every_maximum_in_the_source_is_in_the_table_of_limits() {
    let rows = table("ARCHITECTURE.md", "limits table");
    let listed: BTreeSet<(&str, &str)> =
        rows.iter().map(|row| (first_quoted(&row[0]), first_quoted(&row[3]))).collect();
    // The first has a page of its own; the others are for tests and for a newcomer's first minutes.
    let elsewhere =
        ["crates/app/src/config/knobs.rs", "crates/local-servers/", "crates/app/src/commands/dev.rs"];
    for path in files(".rs") {
        let file = path.strip_prefix(ROOT).expect("it was found there").to_string_lossy().into_owned();
        let ours = file.starts_with("crates/") && file.contains("/src/") && !file.ends_with("tests.rs");
        if !ours || elsewhere.iter().any(|other| file.starts_with(other)) {
            continue;
        }
        let source = read(&file);
        for (name, kind, _) in constants(&source) {
            let is_limit = kind == "Duration" || name.starts_with("MAX_") || name.ends_with("_MAX");
            assert!(
                !is_limit || listed.contains(&(name, file.as_str())),
                "{name} of {file} is not in the table"
            );
        }
    }
}

#[test]
fn every_promise_of_the_lock_has_a_test_and_every_test_a_promise() {
    let page = read("crates/lock/README.md");
    let written: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| L-")?.get(..2)).collect();
    let sources: Vec<String> = files(".rs")
        .iter()
        .filter(|file| file.components().any(|part| part.as_os_str() == "lock"))
        .map(|file| fs::read_to_string(file).expect("a source that can be read"))
        .collect();
    let lines = sources.iter().flat_map(|source| source.lines());
    let tested: BTreeSet<&str> =
        lines.filter_map(|line| line.trim().strip_prefix("// L-")?.get(..2)).collect();
    assert!(!written.is_empty());
    assert_eq!(written, tested);
}

#[test]
fn every_test_that_a_table_names_exists() {
    let sources: String = files(".rs")
        .iter()
        .map(|file| fs::read_to_string(file).expect("a source that can be read"))
        .collect();
    let page = read("ARCHITECTURE.md");
    for (title, rows, every_row) in
        [("Invariants", 10, true), ("When it dies here", 10, false), ("One intake", 8, false)]
    {
        let (_, rest) =
            page.split_once(&format!("## {title}\n")).unwrap_or_else(|| panic!("no section {title}"));
        let section = rest.split("\n## ").next().unwrap_or_default();
        let last_cells: Vec<&str> = section
            .lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .filter_map(|line| line.strip_suffix('|')?.rsplit('|').next())
            .collect();
        assert_eq!(last_cells.len(), rows, "{title}");
        for cell in last_cells {
            assert!(!every_row || quoted(cell).count() > 0, "{title}: a row names no test");
            for test in quoted(cell) {
                assert!(sources.contains(&format!("fn {test}(")), "{title}: there is no test {test}");
            }
        }
    }
}
