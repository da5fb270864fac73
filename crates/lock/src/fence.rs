//! Fences: numbers that rise with every grant of a key and never restart.
//!
//! A client that writes under a lock sends its fence along, and the target of the write rejects a fence lower
//! than one it has seen. As text a fence has fifteen digits, so that byte order equals numeric order.

use crate::LockError;

/// The highest fence that is ever granted.
pub const FENCE_MAX: u64 = 900_000_000_000_000;
/// The fence above which each grant is logged as a warning.
pub const FENCE_WARN: u64 = 90_000_000_000_000;
/// The number of digits of a fence as text.
pub const FENCE_DIGITS: usize = 15;

/// Formats a fence with fifteen digits. Returns [`LockError::InvalidArgument`] if it needs more.
pub fn format_fence(fence: u64) -> Result<String, LockError> {
    if fence > 999_999_999_999_999 {
        return Err(LockError::InvalidArgument(format!(
            "the fence {fence} has more than {FENCE_DIGITS} digits"
        )));
    }
    Ok(format!("{fence:0FENCE_DIGITS$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // L-18
    #[test]
    fn a_fence_has_fifteen_digits() {
        assert_eq!(format_fence(0).expect("fits"), "000000000000000");
        assert_eq!(format_fence(1).expect("fits"), "000000000000001");
        assert_eq!(format_fence(999_999_999_999_999).expect("fits"), "999999999999999");
    }

    // L-18
    #[test]
    fn a_sixteenth_digit_is_refused() {
        assert!(matches!(format_fence(1_000_000_000_000_000), Err(LockError::InvalidArgument(_))));
    }

    // L-04
    #[test]
    fn fences_as_text_sort_as_their_numbers_do() {
        let numbers = [1, 9, 10, 99, 100, FENCE_WARN, FENCE_MAX];
        let texts: Vec<String> = numbers.iter().map(|&fence| format_fence(fence).expect("fits")).collect();
        assert!(texts.is_sorted(), "{texts:?}");
    }
}
