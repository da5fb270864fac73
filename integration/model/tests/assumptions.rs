//! Every assumption of the model is named in the code that keeps it, and every name is an assumption.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The sources of the crates that are shipped.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![Path::new(ROOT).join("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read") {
            let path = entry.expect("an entry that can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "lua") {
                found.push(path);
            }
        }
    }
    found
}

/// The numbers in the lines of a source that are such a comment.
fn numbers(source: &str) -> impl Iterator<Item = &str> {
    let comments = source.lines().filter_map(|line| {
        let line = line.trim();
        line.strip_prefix("// ").or_else(|| line.strip_prefix("-- "))
    });
    comments.filter(|comment| comment.starts_with("MODEL-")).flat_map(|comment| comment.split(", "))
}

#[test]
fn every_assumption_is_named_in_its_code_and_every_name_is_an_assumption() {
    let page = include_str!("../README.md");
    let mut written = BTreeSet::new();
    let mut last = String::new();
    for row in page.lines().filter(|line| line.starts_with("| MODEL-")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(*cells[0] > *last, "{} is not after {last}", cells[0]);
        last = cells[0].to_owned();
        let paths = cells[2].split('`').skip(1).step_by(2);
        written.extend(paths.map(|path| (cells[0].to_owned(), path.to_owned())));
    }
    let mut named = BTreeSet::new();
    for file in sources() {
        let source = fs::read_to_string(&file).expect("a source that can be read");
        let path = file.strip_prefix(ROOT).expect("a file of this project").to_string_lossy();
        named.extend(numbers(&source).map(|number| (number.to_owned(), path.clone().into_owned())));
    }
    assert!(!written.is_empty(), "the page has no assumptions");
    assert_eq!(written, named);
}
