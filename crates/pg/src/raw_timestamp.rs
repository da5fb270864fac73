//! A `timestamptz` with the full range that the server stores.

use std::error::Error;

use ambient::Timestamp;
use tokio_postgres::types::{FromSql, Type};

/// 2000-01-01T00:00:00Z in microseconds since 1970: the server's epoch.
const SERVER_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Any value of a `timestamptz`, including the infinities and the years before 1 and after 9999, so that it
/// returns to the server unchanged. It sorts as on the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RawTimestamp(i64);

impl RawTimestamp {
    /// `-infinity`, before all others.
    pub const NEG_INFINITY: Self = Self(i64::MIN);
    /// `infinity`, after all others.
    pub const INFINITY: Self = Self(i64::MAX);

    /// The time, if it is between the years 1 and 9999.
    pub fn timestamp(self) -> Option<Timestamp> {
        Timestamp::from_micros(self.0.checked_add(SERVER_EPOCH_MICROS)?).ok()
    }

    /// The microseconds since 2000, for storage elsewhere; the infinities are the largest and the smallest
    /// number.
    pub fn as_server_micros(self) -> i64 {
        self.0
    }

    /// The time for a value of [`RawTimestamp::as_server_micros`].
    pub fn from_server_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The next earlier time.
    #[must_use]
    pub fn just_before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The next later time.
    #[must_use]
    pub fn just_after(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The bytes of the server's wire format.
    pub(crate) fn to_wire(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl From<Timestamp> for RawTimestamp {
    fn from(time: Timestamp) -> Self {
        Self(time.as_micros() - SERVER_EPOCH_MICROS)
    }
}

impl<'a> FromSql<'a> for RawTimestamp {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::TIMESTAMPTZ
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_back_and_an_infinity_is_none() {
        for time in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            assert_eq!(RawTimestamp::from(time).timestamp(), Some(time));
        }
        assert_eq!(RawTimestamp::INFINITY.timestamp(), None);
        assert_eq!(RawTimestamp::NEG_INFINITY.timestamp(), None);
        assert!(RawTimestamp::NEG_INFINITY < Timestamp::MIN.into());
        assert!(RawTimestamp::INFINITY > Timestamp::MAX.into());
    }
}
