//! Numbers as PostgreSQL's `numeric` keeps them, without expanding the exponent.

use std::cmp::Ordering;
use std::fmt::{self, Write};

/// The most digits before the decimal point.
const MAX_INTEGER_DIGITS: i64 = 131_072;
/// The most digits after the decimal point.
const MAX_SCALE: i64 = 16_383;
/// The first exponent that PostgreSQL rejects, even for zero.
const EXPONENT_END: i64 = (i32::MAX / 2) as i64;

/// The parts of a number in a JSON text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits<'a> {
    text: &'a str,
    negative: bool,
    integer: &'a str,
    fraction: &'a str,
    exponent: i64,
}

impl<'a> Digits<'a> {
    /// Scans the number at the start of a text, by JSON's grammar. The error contains what is missing, and
    /// its place.
    pub(super) fn scan(text: &'a str) -> Result<Self, (usize, &'static str)> {
        let bytes = text.as_bytes();
        let digits_from = |at: usize| bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let negative = bytes.first() == Some(&b'-');
        let begin = usize::from(negative);
        let length = digits_from(begin);
        if length == 0 {
            return Err((begin, "expected a digit"));
        }
        if length > 1 && bytes[begin] == b'0' {
            return Err((begin, "a number must not begin with 0"));
        }
        let integer = &text[begin..begin + length];
        let mut at = begin + length;
        let mut fraction = "";
        if bytes.get(at) == Some(&b'.') {
            let length = digits_from(at + 1);
            if length == 0 {
                return Err((at + 1, "expected a digit"));
            }
            fraction = &text[at + 1..at + 1 + length];
            at += 1 + length;
        }
        let mut exponent = 0;
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let sign = bytes.get(at + 1).filter(|byte| matches!(byte, b'+' | b'-'));
            let begin = at + 1 + usize::from(sign.is_some());
            let length = digits_from(begin);
            if length == 0 {
                return Err((begin, "expected a digit"));
            }
            // A size that overflows an i64 is far out of range.
            let size = text[begin..begin + length].parse().unwrap_or(EXPONENT_END);
            exponent = if sign == Some(&b'-') { -size } else { size };
            at = begin + length;
        }
        Ok(Self { text: &text[..at], negative, integer, fraction, exponent })
    }

    /// The length of the number in the text, in bytes.
    pub(super) fn length(&self) -> usize {
        self.text.len()
    }

    /// All digits, including those after the decimal point.
    fn all(&self) -> impl DoubleEndedIterator<Item = u8> + '_ {
        self.integer.bytes().chain(self.fraction.bytes())
    }

    fn leading_zeros(&self) -> usize {
        self.all().take_while(|digit| *digit == b'0').count()
    }

    fn count(&self) -> usize {
        self.integer.len() + self.fraction.len()
    }

    /// The number of digits of the value before the decimal point; zero or negative for values such as 0.01.
    fn point(&self) -> i64 {
        self.integer.len() as i64 - self.leading_zeros() as i64 + self.exponent
    }

    /// The number of digits that are shown after the decimal point.
    fn scale(&self) -> i64 {
        (self.fraction.len() as i64 - self.exponent).max(0)
    }

    /// Returns true if `numeric` can hold the number.
    pub(super) fn is_in_range(&self) -> bool {
        let is_zero = self.leading_zeros() == self.count();
        self.exponent.abs() < EXPONENT_END
            && self.scale() <= MAX_SCALE
            && (is_zero || self.point() <= MAX_INTEGER_DIGITS)
    }

    /// The bytes of the number as PostgreSQL writes it, without an exponent.
    pub(crate) fn written_bytes(&self) -> usize {
        let is_zero = self.leading_zeros() == self.count();
        let integer = if is_zero { 1 } else { self.point().max(1) };
        let fraction = if self.scale() > 0 { self.scale() + 1 } else { 0 };
        let sign = i64::from(self.negative && !is_zero);
        usize::try_from(sign + integer + fraction).unwrap_or(usize::MAX)
    }

    /// Converts a number in range.
    pub(super) fn to_number(self) -> Number {
        let leading = self.leading_zeros();
        let trailing = self.all().rev().take_while(|digit| *digit == b'0').count();
        let is_zero = leading == self.count();
        let kept = self.count().saturating_sub(leading + trailing);
        let digits = if is_zero { Box::default() } else { self.all().skip(leading).take(kept).collect() };
        Number {
            negative: self.negative && !is_zero,
            digits,
            // Cannot be cut: both are within the range of a `numeric`.
            point: if is_zero { 0 } else { self.point() as i32 },
            scale: self.scale() as u16,
        }
    }
}

/// A number with all its digits. Numbers compare by value: 1, 1.0 and 10e-1 are equal.
#[derive(Clone, Debug)]
pub struct Number {
    negative: bool,
    /// ASCII digits without zeros at either end; none for zero.
    digits: Box<[u8]>,
    /// The value is 0.DIGITS times ten to this power.
    point: i32,
    /// The number of digits that are shown after the decimal point.
    scale: u16,
}

impl Number {
    /// Parses a JSON number; `None` if the text is not one, or if `numeric` cannot hold it.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = Digits::scan(text).ok()?;
        (digits.length() == text.len() && digits.is_in_range()).then(|| digits.to_number())
    }

    /// The value if it is an integer that fits into an `i64`.
    pub fn to_i64(&self) -> Option<i64> {
        /// More digits than any `i64` has.
        const TOO_MANY: i32 = 20;
        if self.point < self.digits.len() as i32 || self.point >= TOO_MANY {
            return None;
        }
        let digit = |at: usize| self.digits.get(at).map_or(0, |digit| i128::from(digit - b'0'));
        let size = (0..usize::try_from(self.point).ok()?).fold(0, |size, at| size * 10 + digit(at));
        i64::try_from(if self.negative { -size } else { size }).ok()
    }

    /// The value as digits and an exponent: short, whatever the exponent. `numeric` accepts it.
    pub fn to_scientific(&self) -> String {
        let mut text = String::with_capacity(self.digits.len() + 12);
        if self.negative {
            text.push('-');
        }
        if self.digits.is_empty() {
            text.push('0');
            return text;
        }
        text.extend(self.digits.iter().map(|digit| char::from(*digit)));
        let exponent = i64::from(self.point) - self.digits.len() as i64;
        if exponent != 0 {
            // Cannot fail: a string accepts every text.
            write!(text, "e{exponent}").expect("a string takes every text");
        }
        text
    }

    /// Rounds towards zero: clamps to ten to the power of `limit`, and keeps `scale` digits after the decimal
    /// point.
    pub(crate) fn cut(&self, limit: i32, scale: u16) -> Self {
        // Digits begin after the decimal point: ten to the power of 0 is 0.1 times ten to the power of 1.
        if self.point > limit {
            let negative = self.negative;
            return Self { negative, digits: Box::new([b'1']), point: limit + 1, scale: 0 };
        }
        let kept = usize::try_from(self.point + i32::from(scale)).unwrap_or(0).min(self.digits.len());
        let kept = &self.digits[..kept];
        let zeros = kept.iter().rev().take_while(|digit| **digit == b'0').count();
        let digits: Box<[u8]> = kept[..kept.len() - zeros].into();
        let is_zero = digits.is_empty();
        Self {
            negative: self.negative && !is_zero,
            point: if is_zero { 0 } else { self.point },
            digits,
            scale: self.scale.min(scale),
        }
    }

    fn sign(&self) -> i32 {
        match (self.digits.is_empty(), self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        // The first digit is never zero, so the power decides first; the last digit is never zero, so a
        // prefix is smaller.
        let size = (self.point, &self.digits).cmp(&(other.point, &other.digits));
        let by_size = if self.negative { size.reverse() } else { size };
        self.sign().cmp(&other.sign()).then(by_size)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Number {}

impl From<i64> for Number {
    fn from(value: i64) -> Self {
        // Cannot fail: an integer is a JSON number in range.
        Self::parse(&value.to_string()).expect("an integer is a number")
    }
}

/// Writes the number as PostgreSQL does: without an exponent, with its scale.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.negative {
            f.write_char('-')?;
        }
        let digit = |at: i32| {
            let digit = usize::try_from(at).ok().and_then(|at| self.digits.get(at));
            char::from(digit.copied().unwrap_or(b'0'))
        };
        if self.point <= 0 {
            f.write_char('0')?;
        }
        (0..self.point).try_for_each(|at| f.write_char(digit(at)))?;
        if self.scale > 0 {
            f.write_char('.')?;
        }
        (0..i32::from(self.scale)).try_for_each(|at| f.write_char(digit(self.point + at)))
    }
}
