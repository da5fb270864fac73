//! Time in whole microseconds, the precision of PostgreSQL's `timestamptz`.
//!
//! Finer instants would change on their way through the database (ADR 0004), so the type has only the
//! precision of the column.

mod json;

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Datelike, Timelike, Utc};

/// An instant in UTC, in whole microseconds since 1970-01-01T00:00:00Z.
///
/// The range is years 1 to 9999, which both `timestamptz` and RFC 3339 can hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The number does not name an instant between the years 1 and 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOutOfRange;

impl fmt::Display for TimestampOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the instant is not within the years 1 to 9999")
    }
}

impl std::error::Error for TimestampOutOfRange {}

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const UNIX_EPOCH: Self = Self(0);
    /// 0001-01-01T00:00:00Z.
    pub const MIN: Self = Self(-62_135_596_800_000_000);
    /// The last microsecond of the year 9999.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// Returns the instant `micros` microseconds after the Unix epoch.
    pub fn from_micros(micros: i64) -> Result<Self, TimestampOutOfRange> {
        let instant = Self(micros);
        if instant < Self::MIN || instant > Self::MAX { Err(TimestampOutOfRange) } else { Ok(instant) }
    }

    /// Returns the instant `millis` milliseconds after the Unix epoch.
    pub fn from_millis(millis: i64) -> Result<Self, TimestampOutOfRange> {
        millis.checked_mul(1000).ok_or(TimestampOutOfRange).and_then(Self::from_micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the whole milliseconds since the Unix epoch, rounded down.
    pub fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns the time since `earlier`; zero if this is not after it.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

/// Saturates at [`Timestamp::MAX`]; truncates fractions of a microsecond.
impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros).min(Self::MAX.0))
    }
}

/// Saturates at [`Timestamp::MIN`]; truncates fractions of a microsecond.
impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros).max(Self::MIN.0))
    }
}

impl From<Timestamp> for DateTime<Utc> {
    fn from(instant: Timestamp) -> Self {
        // Cannot fail: chrono's years reach far beyond 1 to 9999.
        DateTime::from_timestamp_micros(instant.0).unwrap_or_default()
    }
}

impl TryFrom<DateTime<Utc>> for Timestamp {
    type Error = TimestampOutOfRange;
    fn try_from(instant: DateTime<Utc>) -> Result<Self, TimestampOutOfRange> {
        Self::from_micros(instant.timestamp_micros())
    }
}

/// Formats as RFC 3339 in UTC, six digits of fraction.
///
/// Written digit by digit: a page of 50 documents has a hundred timestamps, and chrono's formatting took a
/// fifth of the instructions of building the page.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = DateTime::<Utc>::from(*self);
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        // Years are positive, see `MIN`.
        for (place, number) in [
            (0..4, at.year().unsigned_abs()),
            (5..7, at.month()),
            (8..10, at.day()),
            (11..13, at.hour()),
            (14..16, at.minute()),
            (17..19, at.second()),
            (20..26, at.timestamp_subsec_micros()),
        ] {
            write_digits(&mut text[place], number);
        }
        // Cannot fail: these are digits.
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// Fills `place` with the last digits of `number`.
fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a time of RFC 3339 between the years 1 and 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotATimestamp;

impl fmt::Display for NotATimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a time such as 2026-04-02T09:21:40.123456Z (RFC 3339, years 1 to 9999)")
    }
}

impl std::error::Error for NotATimestamp {}

/// Parses RFC 3339 with any offset; truncates fractions of a microsecond.
impl FromStr for Timestamp {
    type Err = NotATimestamp;
    fn from_str(text: &str) -> Result<Self, NotATimestamp> {
        let instant = DateTime::parse_from_rfc3339(text).map_err(|_| NotATimestamp)?;
        Self::try_from(instant.to_utc()).map_err(|_| NotATimestamp)
    }
}

/// The source of the time. Read it once per pass and pass the value on.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// A shared clock.
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The operating system's clock, truncated to whole microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the Clock is the one place that reads the system clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::UNIX_EPOCH + since_epoch
    }
}

/// A clock that a test sets.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Creates a clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(AtomicI64::new(start.as_micros()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, span: Duration) {
        self.set(self.now() + span);
    }

    /// Sets the clock to any time, also an earlier one.
    pub fn set(&self, instant: Timestamp) {
        self.0.store(instant.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_millisecond_an_intent_may_name_is_an_instant() {
        let last = Timestamp::from_millis(253_402_300_799_999).expect("within the year 9999");
        assert_eq!(last.to_string(), "9999-12-31T23:59:59.999000Z");
        assert_eq!(Timestamp::from_millis(253_402_300_800_000), Err(TimestampOutOfRange));
    }

    #[test]
    fn an_instant_survives_the_way_through_the_drivers_type() {
        for micros in
            [0, 1, -1, 1_775_121_700_000_123, Timestamp::MAX.as_micros(), Timestamp::MIN.as_micros()]
        {
            let instant = Timestamp::from_micros(micros).expect("in range");
            assert_eq!(Timestamp::try_from(DateTime::<Utc>::from(instant)), Ok(instant));
        }
    }

    #[test]
    fn the_text_of_an_instant_has_every_digit_in_its_place() {
        for (micros, text) in [
            (Timestamp::MIN.as_micros(), "0001-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_775_121_700_000_123, "2026-04-02T09:21:40.000123Z"),
            (1_709_210_096_789_010, "2024-02-29T12:34:56.789010Z"),
            (Timestamp::MAX.as_micros(), "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(Timestamp(micros).to_string(), text);
        }
    }

    #[test]
    fn an_instant_is_read_back_from_its_text_and_from_other_offsets() {
        for micros in [0, -1, 1_775_121_700_000_123, Timestamp::MAX.as_micros(), Timestamp::MIN.as_micros()] {
            let instant = Timestamp::from_micros(micros).expect("in range");
            assert_eq!(instant.to_string().parse(), Ok(instant));
        }
        assert_eq!("1970-01-01T01:00:00.0000019+01:00".parse(), Ok(Timestamp(1)));
        for text in ["", "2026-04-02", "2026-04-02T09:21:40", "0000-01-01T00:00:00Z", "1970-01-01T00:00:61Z"]
        {
            assert_eq!(text.parse::<Timestamp>(), Err(NotATimestamp), "{text}");
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends_of_the_range() {
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MIN - Duration::MAX, Timestamp::MIN);
        assert_eq!(Timestamp::MIN.saturating_since(Timestamp::MAX), Duration::ZERO);
    }
}
