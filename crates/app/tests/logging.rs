//! Checks that docs/logging.md has every log message with its level and fields, and explains every field.
//!
//! `UPDATE_DOCS=1 cargo test -p app` writes the table of messages; the explanations of fields are written by
//! hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/logging.md");

/// The fields of every log line.
const ON_EVERY_LINE: [&str; 4] = ["timestamp", "level", "target", "message"];

/// The text of every source file without its unit tests, with the name of its crate.
fn sources() -> Vec<(String, String)> {
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
    let owner = |file: &Path| {
        let folder = file.strip_prefix(CRATES).ok().and_then(|path| path.iter().next());
        folder.expect("a file of a crate").to_string_lossy().into_owned()
    };
    let text = |file: &Path| fs::read_to_string(file).expect("a source file");
    let without_tests =
        |file: &Path| text(file).split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned();
    files.iter().map(|file| (owner(file), without_tests(file))).collect()
}

/// The levels as the logging macros name them, most severe first.
const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];

/// The arguments of every call of a logging macro, with the index of its level in [`LEVELS`].
fn calls(source: &str) -> Vec<(usize, Vec<String>)> {
    let of_level = |(place, level): (usize, &&str)| {
        let call = format!("tracing::{level}!(");
        source.split(&call).skip(1).map(|rest| (place, arguments(rest))).collect::<Vec<_>>()
    };
    LEVELS.iter().enumerate().flat_map(of_level).collect()
}

/// The names of the fields in the logging macros of `source`.
fn fields(source: &str) -> BTreeSet<String> {
    calls(source).iter().flat_map(|(_, arguments)| arguments).filter_map(|argument| name(argument)).collect()
}

/// The text of a string literal, without its line breaks; `None` if `text` is not one.
fn literal(text: &str) -> Option<String> {
    let text = text.trim().strip_prefix('"')?.strip_suffix('"')?;
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    Some(lines.fold(first, |joined, line| joined + line.trim_start()))
}

/// The message among the arguments of a call in `source`; `"{NAME}"` refers to the constant of that name.
fn message(source: &str, arguments: &[String]) -> Option<String> {
    let message = arguments.iter().rev().find_map(|argument| literal(argument))?;
    let Some(constant) = message.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return Some(message);
    };
    let (_, rest) = source.split_once(&format!("const {constant}: &str = "))?;
    let end = rest.get(1..)?.find('"')? + 2;
    literal(&rest[..end])
}

/// The table of messages: crate, level, message and fields of each.
fn messages() -> String {
    let mut rows: BTreeSet<(String, usize, String, Vec<String>)> = BTreeSet::new();
    for (owner, source) in sources() {
        for (level, arguments) in calls(&source) {
            let message = message(&source, &arguments);
            let message =
                message.unwrap_or_else(|| panic!("a line of {owner} has no constant message: {arguments:?}"));
            let fields =
                arguments.iter().filter_map(|argument| name(argument)).map(|name| format!("`{name}`"));
            rows.insert((owner.clone(), level, message, fields.collect()));
        }
    }
    let mut table = "| crate | level | message | fields |\n|---|---|---|---|\n".to_owned();
    for (owner, level, message, fields) in rows {
        let level = LEVELS[level].to_ascii_uppercase();
        table.push_str(&format!("| {owner} | {level} | {message} | {} |\n", fields.join(", ")));
    }
    table
}

/// Splits the arguments up to the closing parenthesis.
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

/// The name of the field in an argument, if it is one: `name = value`, `name`, `%name` or `?name`.
fn name(argument: &str) -> Option<String> {
    let argument = argument.trim();
    let name = argument.split('=').next().unwrap_or_default().trim().trim_start_matches(['%', '?']);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    is_name.then(|| name.to_owned())
}

/// The names in the first column of the tables of the page.
fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(PAGE).expect("docs/logging.md");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

#[test]
fn the_page_names_exactly_the_fields_that_lines_have() {
    let mut written: BTreeSet<String> = sources().iter().flat_map(|(_, source)| fields(source)).collect();
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
fn the_page_has_exactly_the_messages_of_the_code() {
    let page = fs::read_to_string(PAGE).expect("docs/logging.md");
    let (begin, end) = ("<!-- messages: begin -->\n", "<!-- messages: end -->");
    let (before, rest) = page.split_once(begin).expect("docs/logging.md has a table of messages");
    let (written, after) = rest.split_once(end).expect("the table has an end");
    let expected = messages();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let renewed = [before, begin, &expected, end, after].concat();
        // The file is replaced by a rename, because another test reads the page at the same time.
        let draft = format!("{PAGE}.tmp");
        fs::write(&draft, renewed).expect("docs can be written");
        fs::rename(&draft, PAGE).expect("docs/logging.md can be replaced");
    } else {
        assert!(
            written == expected,
            "docs/logging.md has drifted: UPDATE_DOCS=1 cargo test -p app writes its messages again"
        );
    }
}

#[test]
fn messages_are_found_however_they_are_written() {
    let source = "const BUSY: &str = \"busy; waiting\";\ntracing::warn!(a, \"one, \\\n    two\"); tracing::info!(\"{BUSY}\");";
    let found: Vec<_> = calls(source).iter().map(|(_, arguments)| message(source, arguments)).collect();
    assert_eq!(found, [Some("one, two".to_owned()), Some("busy; waiting".to_owned())]);
}

#[test]
fn fields_are_found_however_they_are_written() {
    let source = r#"tracing::warn!(a, b = f(x, y), %c, ?d, error = %chain(&e), "a, message = {e}"); info_span!(z = 1)"#;
    assert_eq!(fields(source), ["a", "b", "c", "d", "error"].map(str::to_owned).into());
}
