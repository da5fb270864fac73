//! Every numbered promise of a page has a test with its number, and every number above a test is a promise.

use super::*;

#[test]
fn every_promise_of_the_crates_beside_the_service_has_a_test_and_every_test_a_promise() {
    for (name, letter) in [("lock", "L-"), ("idempotency", "I-"), ("outbox", "O-"), ("state", "K-")] {
        let page = read(format!("crates/{name}/README.md"));
        let written: BTreeSet<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_prefix(letter)?.get(..2)).collect();
        let sources: Vec<String> = files(".rs")
            .iter()
            .filter(|file| file.starts_with(Path::new(ROOT).join("crates").join(name)))
            .map(|file| fs::read_to_string(file).expect("a source that can be read"))
            .collect();
        let lines = sources.iter().flat_map(|source| source.lines());
        let tags = lines.filter_map(|line| line.trim().strip_prefix("// ")).flat_map(|line| line.split(", "));
        let tested: BTreeSet<&str> = tags.filter_map(|tag| tag.strip_prefix(letter)?.get(..2)).collect();
        assert!(!written.is_empty(), "{name}");
        assert_eq!(written, tested, "{name}");
    }
}

/// The numbers in the comments directly above tests, such as `// INV-01, CRASH-02`. In a contract suite the
/// cases are the tests.
fn tags(source: &str) -> Vec<&str> {
    let is_suite = source.contains("$crate::contract_cases!(");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(comment) = line.strip_prefix("// ") else { continue };
        if comment.starts_with("INV-") || comment.starts_with("CRASH-") {
            let mut rest = lines[at + 1..].iter().take_while(|line| line.starts_with("#["));
            let is_case = is_suite && lines[at + 1].starts_with("pub async fn ");
            assert!(is_case || rest.any(|line| line.contains("test")), "{line} is not above a test");
            found.extend(comment.split(", "));
        }
    }
    found
}

#[test]
fn every_invariant_and_every_crash_has_a_test_and_every_tag_a_row() {
    let rows = ["invariants", "crash table", "leader table"].map(|name| table("ARCHITECTURE.md", name));
    let numbers: Vec<&str> = rows.iter().flatten().map(|row| row[0].as_str()).collect();
    let written: BTreeSet<&str> = numbers.iter().copied().collect();
    assert_eq!(numbers.len(), written.len(), "a number is there twice");
    let sources: Vec<String> = files(".rs")
        .iter()
        .filter(|file| !file.ends_with("tests/it/docs/tags.rs"))
        .map(|file| fs::read_to_string(file).expect("a source that can be read"))
        .collect();
    let tested: BTreeSet<&str> = sources.iter().flat_map(|source| tags(source)).collect();
    assert_eq!(written, tested);
}

#[test]
#[should_panic(expected = "is not above a test")]
fn a_tag_above_anything_else_is_found() {
    tags("// INV-01\nfn no_test() {}");
}
