//! Times of one form, parsed in the same way by the evaluator and by the function in the database.

/// An instant, from a text of the form `YYYY-MM-DDThh:mm:ss[.1 to 6 digits](Z|±hh:mm)`. Its offset can put it
/// some hours before the year 1 or after 9999.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instant {
    text: String,
    micros: i64,
}

/// The longest form: `2026-01-01T00:00:00.000000+00:00`.
const MAX_TIME_BYTES: usize = 32;

impl Instant {
    /// Returns `None` if the text has another form or contains a day that does not exist.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self { text: text.to_owned(), micros: micros(text)? })
    }

    /// The text, unchanged.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Microseconds since 1970 in UTC.
    pub fn as_micros(&self) -> i64 {
        self.micros
    }
}

/// Parses a text of the form of [`Instant`] into microseconds since 1970 in UTC; `None` for any other text.
pub(super) fn micros(text: &str) -> Option<i64> {
    /// The form up to the seconds: `0` stands for a digit.
    const FORM: &[u8] = b"0000-00-00T00:00:00";
    let bytes = text.as_bytes();
    let fits = |byte: u8, form: u8| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    if bytes.len() > MAX_TIME_BYTES
        || bytes.len() <= FORM.len()
        || !bytes.iter().zip(FORM).all(|(byte, form)| fits(*byte, *form))
    {
        return None;
    }
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let is_there = year > 0 && (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !is_there || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let rest = &text[FORM.len()..];
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if !(1..=6).contains(&digits) {
                return None;
            }
            (format!("{:0<6}", &rest[..digits]).parse().ok()?, &rest[digits..])
        }
        None => (0, rest),
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some((seconds - offset_seconds(zone)?) * 1_000_000 + fraction)
}

fn offset_seconds(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let bytes = zone.as_bytes();
    let is_form =
        bytes.len() == 6 && bytes[3] == b':' && [1, 2, 4, 5].iter().all(|at| bytes[*at].is_ascii_digit());
    let sign = match bytes.first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return None,
    };
    if !is_form {
        return None;
    }
    let (hours, minutes) = (zone[1..3].parse::<i64>().ok()?, zone[4..6].parse::<i64>().ok()?);
    (hours <= 15 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The days since 1970 in the Gregorian calendar, for years from 1.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let past = year - 1;
    let whole_years = past * 365 + past / 4 - past / 100 + past / 400;
    let whole_months: i64 = (1..month).map(|month| days_of(year, month)).sum();
    /// The days from the first day of the year 1 to 1970.
    const UNTIL_1970: i64 = 719_162;
    whole_years + whole_months + day - 1 - UNTIL_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_form_is_an_instant() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00.000001+01:00", 1),
            ("1969-12-31T23:59:59.9-00:00", -100_000),
            ("2024-02-29T00:00:00Z", 1_709_164_800_000_000),
            ("2000-02-29T12:34:56.123456-15:59", 951_885_236_123_456),
            ("0001-01-01T00:00:00Z", ambient::Timestamp::MIN.as_micros()),
            ("0001-01-01T00:00:00+15:59", ambient::Timestamp::MIN.as_micros() - 57_540_000_000),
            ("9999-12-31T23:59:59.999999Z", ambient::Timestamp::MAX.as_micros()),
        ] {
            assert_eq!(micros(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_text_of_another_form_is_no_time() {
        for text in [
            "",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01 00:00:00Z",
            "2024-01-01t00:00:00Z",
            "2024-01-01T00:00:00z",
            "2024-01-01T00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:60Z",
            "2023-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-01-00T00:00:00Z",
            "2024-01-32T00:00:00Z",
            "0000-01-01T00:00:00Z",
            "02024-01-01T00:00:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.1234567Z",
            "2024-01-01T00:00:00,1Z",
            "2024-01-01T00:00:00+16:00",
            "2024-01-01T00:00:00+01:60",
            "2024-01-01T00:00:00+0100",
            "2024-01-01T00:00:00+01",
            "2024-01-01T00:00:00Z ",
            " 2024-01-01T00:00:00Z",
            "2024-01-01T00:00:00ZZ",
            "2024-01-01T00:00:00Z\n",
            "２024-01-01T00:00:00Z",
            "2024-01-01T00:00:00+é1:0",
            "-024-01-01T00:00:00Z",
            "2024-01-01T00:00:00−01:00",
            "infinity",
            "now",
        ] {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
