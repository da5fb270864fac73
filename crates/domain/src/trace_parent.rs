//! The trace context that a producer propagates: the header `traceparent` of W3C Trace Context.
//!
//! `trace_id` of an intent may contain anything. If it contains a traceparent, the intent continues that
//! trace; if not, it is passed on without meaning here. Nothing is corrected: a text that differs from the
//! format in one character is not a traceparent.

/// The length of version 00, in bytes: version, trace id, parent id and flags, separated by hyphens.
const LENGTH: usize = 55;
/// The flag that the caller may have recorded the trace.
const SAMPLED: u8 = 1;

/// The span, and its trace, that caused something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceParent {
    /// Id of the trace; not all zero.
    pub trace_id: [u8; 16],
    /// Id of the span; not all zero.
    pub span_id: [u8; 8],
    /// True if the caller may have recorded the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses a traceparent. `None` if the text is not one: wrong length, upper case, ids of zeros only, or
    /// version ff. Of versions later than 00, the part known from version 00 is read, as the standard
    /// requires.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let (known, rest) = bytes.split_at_checked(LENGTH)?;
        let [version] = hex(known.get(..2)?)?;
        let ends = match version {
            0x00 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let hyphens = [2, 35, 52].iter().all(|place| known.get(*place) == Some(&b'-'));
        if !ends || !hyphens {
            return None;
        }
        let trace_id: [u8; 16] = hex(known.get(3..35)?)?;
        let span_id: [u8; 8] = hex(known.get(36..52)?)?;
        let [flags] = hex(known.get(53..)?)?;
        let is_valid = trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, sampled: flags & SAMPLED == SAMPLED })
    }
}

/// Decodes N bytes from twice as many lower-case hexadecimal digits.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_gives_both_ids_and_whether_the_trace_is_sampled() {
        let read = |flags: &str| TraceParent::parse(&format!("00-{TRACE}-{SPAN}-{flags}"));
        let sampled = TraceParent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes(),
            span_id: 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes(),
            sampled: true,
        };
        assert_eq!(read("01"), Some(sampled));
        assert_eq!(read("00"), Some(TraceParent { sampled: false, ..sampled }));
        // Unknown flags have no meaning.
        assert_eq!(read("03"), Some(sampled));
        assert_eq!(read("fe"), Some(TraceParent { sampled: false, ..sampled }));
    }

    #[test]
    fn of_a_later_version_the_known_part_is_read() {
        for text in ["01-{t}-{s}-01", "cc-{t}-{s}-01-what-comes-later", "fe-{t}-{s}-01-"] {
            let text = text.replace("{t}", TRACE).replace("{s}", SPAN);
            assert!(TraceParent::parse(&text).is_some_and(|parent| parent.sampled), "{text}");
        }
        for text in ["01-{t}-{s}-01x", "cc-{t}-{s}-01.what-comes-later", "01-{t}-{s}-0", "fe-{t}-{s}-1-x"] {
            let text = text.replace("{t}", TRACE).replace("{s}", SPAN);
            assert_eq!(TraceParent::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn what_differs_in_one_place_is_no_traceparent() {
        let wrong = [
            // Version ff; a version that is not a number; more text than version 00 has.
            "ff-{t}-{s}-01",
            "0x-{t}-{s}-01",
            "0-{t}-{s}-001",
            "00-{t}-{s}-01-",
            "00-{t}-{s}-01-more",
            // Ids of zeros only.
            "00-00000000000000000000000000000000-{s}-01",
            "00-{t}-0000000000000000-01",
            // Upper case, and characters that are not digits.
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-{s}-01",
            "00-{t}-00F067AA0BA902B7-01",
            "00-{t}-{s}-0A",
            "FE-{t}-{s}-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-{s}-01",
            "00-{t}-{s}-0 ",
            // Lengths and hyphens.
            "",
            "00",
            "00-{t}-{s}",
            "00-{t}-{s}-",
            "00-{t}-{s}-1",
            "00-{t}0-{s}-1",
            "00_{t}-{s}-01",
            "00-{t}_{s}-01",
            "00-{t}-{s}_01",
            " 00-{t}-{s}-01",
            "00-{t}-{s}-01 ",
            "00-4bf92f3577b34da6a3ce929d0e0e47é-{s}-01",
            "lobby-7c1e",
        ];
        for text in wrong {
            let text = text.replace("{t}", TRACE).replace("{s}", SPAN);
            assert_eq!(TraceParent::parse(&text), None, "{text:?}");
        }
    }

    #[test]
    fn a_traceparent_in_which_any_byte_is_replaced_by_a_capital_is_none() {
        let valid = format!("00-{TRACE}-{SPAN}-01");
        for place in 0..valid.len() {
            let mut bytes = valid.clone().into_bytes();
            bytes[place] = b'Z';
            let text = String::from_utf8(bytes).expect("ASCII");
            assert_eq!(TraceParent::parse(&text), None, "{text}");
        }
    }
}
