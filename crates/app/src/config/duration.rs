//! Durations in Go's notation: `250ms`, `1h30m`, `720h`.
//!
//! The grammar and the range (up to 2^63-1 nanoseconds) are those of Go's `time.ParseDuration`. Negative
//! durations are rejected, because no variable of the service can have one.

use std::time::Duration;

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// The reason why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A number without a unit.
    #[error("{0} has no unit; did you mean {0}ms or {0}s?")]
    MissingUnit(String),
    /// Letters that are not a unit of time.
    #[error("{0:?} is not a unit of time (ns, us, ms, s, m, h)")]
    UnknownUnit(String),
    /// A negative duration.
    #[error("it is negative")]
    Negative,
    /// A duration over 2^63-1 nanoseconds.
    #[error("it is longer than a duration can be (about 292 years)")]
    TooLong,
    /// Any other syntax error.
    #[error("not a duration")]
    Syntax,
}

/// Parses a duration, exact to the nanosecond.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanos = if unsigned == "0" { 0 } else { parse_terms(unsigned)? };
    if negative && nanos > 0 {
        return Err(DurationError::Negative);
    }
    Ok(Duration::from_nanos(nanos))
}

/// Parses one or more `<number><unit>`, and returns their sum in nanoseconds.
fn parse_terms(mut rest: &str) -> Result<u64, DurationError> {
    if rest.is_empty() {
        return Err(DurationError::Syntax);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (nanos, after) = parse_term(rest)?;
        total = total.checked_add(nanos).filter(within_range).ok_or(DurationError::TooLong)?;
        rest = after;
    }
    Ok(total)
}

/// Parses the first `<number><unit>`, and returns it in nanoseconds with the rest of the text.
fn parse_term(text: &str) -> Result<(u64, &str), DurationError> {
    let (whole, after_whole) = split_digits(text);
    let (fraction, after_number) = after_whole.strip_prefix('.').map_or(("", after_whole), split_digits);
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Syntax);
    }
    let unit_end = after_number.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after_number.len());
    let (unit, rest) = after_number.split_at(unit_end);
    if unit.is_empty() {
        let number = &text[..text.len() - after_number.len()];
        return Err(DurationError::MissingUnit(number.to_owned()));
    }
    let unit = unit_nanos(unit).ok_or_else(|| DurationError::UnknownUnit(unit.to_owned()))?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| DurationError::TooLong)? };
    let nanos = whole.checked_mul(unit).and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, unit)));
    Ok((nanos.filter(within_range).ok_or(DurationError::TooLong)?, rest))
}

fn within_range(nanos: &u64) -> bool {
    i64::try_from(*nanos).is_ok()
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    match unit {
        "ns" => Some(NANOSECOND),
        // The second spelling has the micro sign, the third the Greek letter mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(MICROSECOND),
        "ms" => Some(MILLISECOND),
        "s" => Some(SECOND),
        "m" => Some(MINUTE),
        "h" => Some(HOUR),
        _ => None,
    }
}

/// Converts `0.<digits>` of a unit to nanoseconds. Computes in a double, as Go does, so that
/// `0.3333333333333333333h` is 20 minutes in both.
fn fraction_nanos(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0_u64, 1.0_f64);
    for digit in digits.bytes().map(|digit| u64::from(digit - b'0')) {
        match value.checked_mul(10).and_then(|tens| tens.checked_add(digit)).filter(within_range) {
            Some(more) => value = more,
            // Digits beyond the 18th exceed the precision of a double.
            None => break,
        }
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

/// Formats a duration so that [`parse`] returns the same duration: `1h30m`, `2.5s`, `250ms`, `0s`. A duration
/// longer than [`parse`] accepts is shown as the longest that it accepts.
pub fn format(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).ok().filter(within_range).unwrap_or(i64::MAX as u64);
    match nanos {
        0 => "0s".to_owned(),
        1..MICROSECOND => format!("{nanos}ns"),
        MICROSECOND..MILLISECOND => decimal(nanos, MICROSECOND, "us"),
        MILLISECOND..SECOND => decimal(nanos, MILLISECOND, "ms"),
        _ => {
            let (hours, minutes, seconds) = (nanos / HOUR, nanos % HOUR / MINUTE, nanos % MINUTE);
            let mut text = String::new();
            for (count, unit) in [(hours, "h"), (minutes, "m")] {
                if count > 0 {
                    text += &format!("{count}{unit}");
                }
            }
            if seconds > 0 {
                text += &decimal(seconds, SECOND, "s");
            }
            text
        }
    }
}

fn decimal(nanos: u64, unit: u64, name: &str) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", nanos % unit);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}{name}", nanos / unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn everything_that_go_reads_is_read() {
        let cases: [(&str, u64); 32] = [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("5s", 5 * SECOND),
            ("30s", 30 * SECOND),
            ("+5s", 5 * SECOND),
            ("1478s", 1478 * SECOND),
            ("5.0s", 5 * SECOND),
            ("5.6s", 5 * SECOND + 600 * MILLISECOND),
            ("5.s", 5 * SECOND),
            (".5s", 500 * MILLISECOND),
            ("1.004s", SECOND + 4 * MILLISECOND),
            ("100.00100s", 100 * SECOND + MILLISECOND),
            ("10ns", 10),
            ("11us", 11 * MICROSECOND),
            ("12\u{b5}s", 12 * MICROSECOND),
            ("12\u{3bc}s", 12 * MICROSECOND),
            ("13ms", 13 * MILLISECOND),
            ("15m", 15 * MINUTE),
            ("16h", 16 * HOUR),
            ("3h30m", 3 * HOUR + 30 * MINUTE),
            ("10.5s4m", 4 * MINUTE + 10 * SECOND + 500 * MILLISECOND),
            ("1h2m3s4ms5us6ns", HOUR + 2 * MINUTE + 3 * SECOND + 4 * MILLISECOND + 5 * MICROSECOND + 6),
            ("39h9m14.425s", 39 * HOUR + 9 * MINUTE + 14 * SECOND + 425 * MILLISECOND),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 20 * MINUTE),
            ("0.100000000000000000000h", 6 * MINUTE),
            ("9007199254740993ns", (1 << 53) + 1),
            ("9223372036854775807ns", i64::MAX as u64),
            ("9223372036854775.807us", i64::MAX as u64),
            ("2562047h47m16.854775807s", i64::MAX as u64),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_with_its_reason() {
        use DurationError::{MissingUnit, Negative, Syntax, TooLong, UnknownUnit};
        let unknown = |unit: &str| UnknownUnit(unit.to_owned());
        let cases = [
            ("", Syntax),
            ("+", Syntax),
            ("-", Syntax),
            ("s", Syntax),
            (".", Syntax),
            (".s", Syntax),
            ("--1s", Syntax),
            ("\u{664}s", Syntax),
            ("3", MissingUnit("3".to_owned())),
            ("1h30", MissingUnit("30".to_owned())),
            ("1.5", MissingUnit("1.5".to_owned())),
            ("1 s", unknown(" s")),
            ("1s ", unknown("s ")),
            ("1d", unknown("d")),
            ("1S", unknown("S")),
            ("1e3s", unknown("e")),
            ("-1s", Negative),
            ("-1ns", Negative),
            ("9223372036854775808ns", TooLong),
            ("9223372036854775.808us", TooLong),
            ("99999999999999999999h", TooLong),
            ("2562048h", TooLong),
            ("2562047h47m16.854775808s", TooLong),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn parts_that_are_zero_are_not_written() {
        for text in ["0s", "1ns", "1.5us", "250ms", "1s", "1.5s", "5m", "1h30m", "720h", "1h0.001s"] {
            assert_eq!(format(parse(text).expect("a duration")), text);
        }
        assert_eq!(format(Duration::from_secs(90)), "1m30s");
        assert_eq!(parse(&format(Duration::MAX)), Ok(Duration::from_nanos(i64::MAX as u64)));
    }

    proptest! {
        #[test]
        fn every_duration_survives_being_written_and_read(nanos in 0..=i64::MAX as u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_whatever_makes_the_reader_panic(text in "[-+]?[0-9.a-z\u{b5} ]{0,24}") {
            if let Ok(duration) = parse(&text) {
                prop_assert_eq!(parse(&format(duration)), Ok(duration));
            }
        }
    }
}
