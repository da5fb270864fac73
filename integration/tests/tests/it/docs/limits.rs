//! The constants on the page of limits have the values that it gives.

use super::*;

/// Names and values of constants.
macro_rules! limits {
    ($($constant:path),* $(,)?) => {
        BTreeMap::from([$((stringify!($constant).to_owned(), $constant as u64)),*])
    };
}

/// The value in the form of a page: `4 KiB`, `1,000 characters`.
fn value_on_page(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "" | "bytes" | "characters" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    Some(number.replace(',', "").parse::<u64>().ok()? * factor)
}

#[test]
fn every_constant_on_the_page_of_limits_has_the_value_beside_it() {
    let page = read("docs/limits.md");
    let rows = page.lines().filter(|line| line.ends_with("` |")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let value = value_on_page(cells[1]).unwrap_or_else(|| panic!("{line} has no value"));
        (first_quoted(cells[2]).to_owned(), value)
    });
    let constants = limits![
        domain::catalog::MAX_NAME,
        domain::intent::MAX_ENTRY,
        domain::intent::MAX_IDENTIFIER,
        domain::intent::MAX_OCCURRED_AT_MS,
        domain::intent::MAX_PAYLOAD,
        domain::intent::MAX_RECIPIENT,
        domain::intent::MAX_RECIPIENTS,
        domain::json::MAX_LEVELS,
        domain::operations::MAX_REASON_BYTES,
        domain::operations::MAX_ROUTES_PER_REQUEST,
        domain::query::COUNT_CAP,
        domain::query::MAX_CAUSES,
        domain::query::MAX_PAGE_ITEMS,
        domain::receipt::MAX_DETAIL_CHARS,
        domain::receipt::MAX_HISTORY,
        domain::receipt::MAX_REPORTS,
        state::MAX_ANSWER_BYTES,
        state::MAX_DECLARED_INDEXES,
        state::MAX_KEY_BYTES,
        state::MAX_TABLE_NAME_BYTES,
        state::json::MAX_LEVELS,
        state::json::MAX_WRITTEN_BYTES,
        state::query::MAX_CONDITIONS,
        state::query::MAX_CONTAINED_ELEMENTS,
        state::query::MAX_ELEMENTS,
        state::query::MAX_LOGIC_LEVELS,
        state::query::MAX_PAGE,
        state::query::MAX_QUERY_VALUES,
        state::query::MAX_SORT_TERMS,
    ];
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), constants);
}
