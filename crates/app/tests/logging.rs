//! docs/logging.md names every field of every log line, and none that no line has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/logging.md");

/// Those that every line has, whoever writes it.
const ON_EVERY_LINE: [&str; 4] = ["timestamp", "level", "target", "message"];

/// The text of every source file of every crate, without its unit tests.
fn sources() -> Vec<String> {
    let folders =
        fs::read_dir(CRATES).expect("the crates").map(|entry| entry.expect("a crate").path().join("src"));
    let mut files: Vec<PathBuf> = Vec::new();
    let mut open: Vec<PathBuf> = folders.collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                open.push(entry);
            } else if entry.extension().is_some_and(|it| it == "rs")
                && entry.file_stem().is_some_and(|it| it != "tests")
            {
                files.push(entry);
            }
        }
    }
    let text = |file: &Path| fs::read_to_string(file).expect("a source file");
    files.iter().map(|file| text(file).split("#[cfg(test)]").next().unwrap_or_default().to_owned()).collect()
}

/// The names that the logging macros in `source` give to fields.
fn fields(source: &str) -> BTreeSet<String> {
    let calls = ["error", "warn", "info", "debug"].map(|level| format!("tracing::{level}!("));
    let after = calls.iter().flat_map(|call| source.split(call.as_str()).skip(1));
    after.flat_map(|rest| arguments(rest).into_iter().filter_map(|argument| name(&argument))).collect()
}

/// The arguments up to the closing parenthesis.
fn arguments(text: &str) -> Vec<String> {
    let (mut depth, mut quoted, mut previous) = (0, false, ' ');
    let mut all = vec![String::new()];
    for c in text.chars() {
        match c {
            '"' if previous != '\\' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' if !quoted && depth == 0 => break,
            ')' | ']' | '}' if !quoted => depth -= 1,
            _ => {}
        }
        previous = c;
        match all.last_mut() {
            Some(_) if c == ',' && !quoted && depth == 0 => all.push(String::new()),
            Some(argument) => argument.push(c),
            None => {}
        }
    }
    all
}

/// The field that an argument gives, if it is one: `name = value`, `name`, `%name` or `?name`.
fn name(argument: &str) -> Option<String> {
    let argument = argument.trim();
    let name = argument.split('=').next().unwrap_or_default().trim().trim_start_matches(['%', '?']);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    is_name.then(|| name.to_owned())
}

/// The first column of the tables of the page.
fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(PAGE).expect("docs/logging.md");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

#[test]
fn the_page_names_exactly_the_fields_that_lines_have() {
    let mut written: BTreeSet<String> = sources().iter().flat_map(|source| fields(source)).collect();
    written.extend(ON_EVERY_LINE.map(str::to_owned));
    let documented = documented();
    let missing: Vec<_> = written.difference(&documented).collect();
    let idle: Vec<_> = documented.difference(&written).collect();
    assert!(
        missing.is_empty() && idle.is_empty(),
        "not in docs/logging.md: {missing:?}; in no log line: {idle:?}"
    );
}

#[test]
fn fields_are_found_however_they_are_written() {
    let source = r#"tracing::warn!(a, b = f(x, y), %c, ?d, error = %chain(&e), "a, message = {e}"); info_span!(z = 1)"#;
    assert_eq!(fields(source), ["a", "b", "c", "d", "error"].map(str::to_owned).into());
}
