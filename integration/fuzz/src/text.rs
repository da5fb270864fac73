//! Helpers that targets share.

/// A secret that some targets put into their input and look for in the output.
pub(crate) const SECRET: &str = "S3cretPw";

/// The parts of an input between bytes 0x1e, the record separator of ASCII. No parts for an empty input.
pub(crate) fn records(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    input.split(|byte| *byte == 0x1e).filter(|_| !input.is_empty())
}

/// The part of a record before the first byte 0x1f, the unit separator of ASCII, and the rest.
pub(crate) fn units(record: &[u8]) -> (&[u8], &[u8]) {
    match record.iter().position(|byte| *byte == 0x1f) {
        Some(at) => (&record[..at], &record[at + 1..]),
        None => (record, &[]),
    }
}

/// The longest nesting of brackets and braces in a text, strings included.
pub(crate) fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Returns true if a place that an error names is in the text. Lines and columns count from 1.
pub(crate) fn has_place(text: &[u8], line: usize, column: usize) -> bool {
    let named = line.checked_sub(1).and_then(|index| text.split(|byte| *byte == b'\n').nth(index));
    named.is_some_and(|named| (1..=named.len() + 1).contains(&column))
}

/// Returns true if a value names a file that has no end or waits for input.
pub(crate) fn names_a_device(text: &str) -> bool {
    ["/dev", "/proc", "/sys"].iter().any(|folder| text.contains(folder))
}
