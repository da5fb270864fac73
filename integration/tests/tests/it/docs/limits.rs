//! The limits on a page are those of the source.

use super::*;

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

/// The value in the form of a page: `4 KiB`, `10 s`, `1,000 characters`.
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
pub(super) fn constants(source: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    code.split("const ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(": ")?;
        let (kind, rest) = rest.split_once(" = ")?;
        Some((name, kind, rest.split_once(';')?.0))
    })
}

#[test]
fn every_limit_of_the_table_is_a_constant_with_that_value_in_that_file() {
    for row in table("docs/limits.md", "limits table") {
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
    let rows = table("docs/limits.md", "limits table");
    let listed: BTreeSet<(&str, &str)> =
        rows.iter().map(|row| (first_quoted(&row[0]), first_quoted(&row[3]))).collect();
    // The first has a page of its own; the others are for tests and for a newcomer's first minutes.
    let elsewhere =
        ["crates/app/src/config/knobs.rs", "crates/local-servers/", "crates/app/src/commands/dev"];
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
