//! Doc comments start with the noun that the item is, or the verb of what it does.

use super::*;

/// The largest share of doc comments that may start otherwise, in percent.
const MAX_SHARE: usize = 1;
/// The longest line of a comment, in characters.
const MAX_LINE: usize = 110;

#[test]
fn comments_are_short_lines_and_start_with_a_noun_or_a_verb() {
    const OPENERS: [&str; 7] = ["What", "Which", "Why", "Where", "Who", "Whom", "Whose"];
    let (mut total, mut found) = (0, Vec::new());
    for file in files(".rs") {
        let source = fs::read_to_string(&file).expect("a source that can be read");
        let mut is_first = true;
        for (line, text) in source.lines().enumerate().map(|(at, line)| (at + 1, line)) {
            let comment = text.trim_start();
            let place = format!("{}:{line}", file.display());
            assert!(!comment.starts_with("//") || text.chars().count() <= MAX_LINE, "{place} is too long");
            let Some(doc) = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")) else {
                is_first = true;
                continue;
            };
            if std::mem::replace(&mut is_first, false) {
                total += 1;
                let word = doc.split_whitespace().next().unwrap_or_default();
                found.extend(OPENERS.contains(&word).then_some(place));
            }
        }
    }
    assert!(found.len() * 100 <= total * MAX_SHARE, "of {total} comments: {found:#?}");
}
