//! Prints the fields of a malformed intent: readable, or byte for byte.

use std::io::Write;

use anyhow::{Context, anyhow};
use domain::malformed_intent::{StoredPart, read_fields, text_of};

use crate::commands::Failure;
use crate::commands::operators::Cell;
use crate::commands::output::printable;

/// The most bytes of a value shown on a line.
const SHOWN_BYTES: usize = 2_000;

/// The rows of the fields, in the order received.
pub(super) fn field_rows(json: Option<&str>) -> Vec<Vec<Cell>> {
    let note = |text: &str| vec![vec![Cell::from(text)]];
    let Some(json) = json else { return note("(too large to be shown with those before it)") };
    match read_fields(json) {
        // Another program has changed the row.
        None => note(&printable(json)),
        Some(fields) if fields.is_empty() => note("(none)"),
        Some(fields) => {
            fields.iter().map(|(name, value)| vec![Cell::strong(shown(name)), shown(value).into()]).collect()
        }
    }
}

/// Formats a name or a value for one line.
fn shown(part: &StoredPart) -> String {
    match part.not_kept() {
        None => text(part.kept()),
        Some(rest) if part.kept().is_empty() => format!("({rest})"),
        Some(rest) => format!("({rest}) {}", text(part.kept())),
    }
}

/// Formats bytes as text; bytes that are not UTF-8 are shown as `\xNN`.
fn text(bytes: &[u8]) -> String {
    let (text, is_whole) = text_of(bytes, SHOWN_BYTES);
    match is_whole {
        true => printable(&text),
        false => format!("{}… ({} bytes)", printable(&text), bytes.len()),
    }
}

/// Writes the fields byte for byte: all of them, or only the value of the first field with this name.
pub(super) fn write_raw(
    out: &mut impl Write,
    json: Option<&str>,
    field: Option<&str>,
) -> Result<(), Failure> {
    let json = json.ok_or_else(|| anyhow!("the fields of this malformed intent were deleted meanwhile"))?;
    let fields =
        read_fields(json).ok_or_else(|| anyhow!("the stored fields were changed by another program"))?;
    let mut is_whole = true;
    let mut write = |part: &StoredPart, end: &[u8]| {
        is_whole &= matches!(part, StoredPart::Whole(_));
        out.write_all(part.kept())
            .and_then(|()| out.write_all(end))
            .context("could not write to standard output")
    };
    match field {
        None => {
            for (name, value) in &fields {
                write(name, b"\n")?;
                write(value, b"\n")?;
            }
        }
        Some(wanted) => {
            let is_wanted = |name: &StoredPart| *name == StoredPart::Whole(wanted.as_bytes().to_vec());
            let found = fields.iter().find(|(name, _)| is_wanted(name));
            let (_, value) = found.ok_or_else(|| anyhow!("there is no field {}", printable(wanted)))?;
            write(value, b"")?;
        }
    }
    match is_whole {
        true => Ok(()),
        false => Err(anyhow!("what was too long was not kept whole; this is the part that was kept").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::operators::{Style, print_rows};

    const FIELDS: &str =
        r#"[["producer","game\nmaster"],["payload_json",{"base64":"ef8A"}],["producer","second"]]"#;
    const CUT: &str = r#"[["a",{"truncated":{"bytes":70000,"sha256":"ab","head_base64":"eHk="}}]]"#;

    fn raw(json: &str, field: Option<&str>) -> (Vec<u8>, bool) {
        let mut out = Vec::new();
        let outcome = write_raw(&mut out, Some(json), field);
        (out, outcome.is_ok())
    }

    #[test]
    fn raw_fields_are_written_byte_for_byte() {
        let expected = b"producer\ngame\nmaster\npayload_json\ny\xff\0\nproducer\nsecond\n";
        assert_eq!(raw(FIELDS, None), (expected.to_vec(), true));
        assert_eq!(raw(FIELDS, Some("payload_json")), (b"y\xff\0".to_vec(), true));
        assert_eq!(raw(FIELDS, Some("colour")), (Vec::new(), false));
    }

    #[test]
    fn a_field_that_was_cut_is_written_as_far_as_it_was_kept_and_that_fails() {
        assert_eq!(raw(CUT, None), (b"a\nxy\n".to_vec(), false));
        assert_eq!(raw("{}", None), (Vec::new(), false));
    }

    #[test]
    fn fields_are_shown_without_what_a_terminal_would_act_upon() {
        let mut out = Vec::new();
        print_rows(&mut out, Style::PLAIN, &field_rows(Some(FIELDS))).expect("memory takes it");
        let expected = "producer      game\\nmaster\npayload_json  y\\xff\\u{0}\nproducer      second\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        assert_eq!(text(&vec![b'x'; 3_000]), format!("{}… (3000 bytes)", "x".repeat(SHOWN_BYTES)));
    }
}
