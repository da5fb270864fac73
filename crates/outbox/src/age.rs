//! The age from which an event may be pruned.

use std::time::Duration;

/// The largest age. A longer one has the same effect, because no event is that old.
const MAX_AGE: Duration = Duration::from_secs(1_000_000 * 24 * 60 * 60);

/// An age in whole minutes, hours or days: `90m`, `24h`, `7d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Age(Duration);

/// The text is not an age.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an age takes digits and one of d, h and m, such as 7d")]
pub struct AgeError;

impl Age {
    /// Parses the text: `^\d+[dhm]$`.
    pub fn parse(text: &str) -> Result<Self, AgeError> {
        let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(AgeError)?;
        let seconds = match unit {
            "m" => 60,
            "h" => 60 * 60,
            "d" => 24 * 60 * 60,
            _ => return Err(AgeError),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AgeError);
        }
        // Parsing fails only if there are too many digits.
        let number: u64 = digits.parse().unwrap_or(u64::MAX);
        Ok(Self(Duration::from_secs(number.saturating_mul(seconds)).min(MAX_AGE)))
    }

    /// Parses the text; an empty text and `0` mean no age: nothing of that kind is pruned.
    pub fn parse_optional(text: &str) -> Result<Option<Self>, AgeError> {
        if ["", "0"].contains(&text) { Ok(None) } else { Self::parse(text).map(Some) }
    }

    /// Returns the age as a duration.
    pub fn as_duration(self) -> Duration {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // O-18
    #[test]
    fn an_age_is_digits_and_a_unit_and_an_optional_one_may_be_empty_or_zero() {
        let minutes = |text: &str| Age::parse_optional(text).map(|age| age.map(|age| age.0.as_secs() / 60));
        for (text, expected) in
            [("7d", Some(7 * 24 * 60)), ("24h", Some(24 * 60)), ("60m", Some(60)), ("0", None), ("", None)]
        {
            assert_eq!(minutes(text), Ok(expected), "{text}");
        }
        for text in ["7D", " 7d", "7 d", "1w", "-1d", "1.5h", "d", "7", "00", "7dd", "٧d", "7d\n", "+7d"] {
            assert_eq!(minutes(text), Err(AgeError), "{text:?}");
        }
        for text in ["", "0", "d", "é"] {
            assert_eq!(Age::parse(text), Err(AgeError), "{text:?}");
        }
        assert_eq!(Age::parse("99999999999999999999999d"), Ok(Age(MAX_AGE)));
    }
}
