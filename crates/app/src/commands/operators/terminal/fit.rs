//! The widths of a table's columns on a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The number of spaces between two columns.
pub(super) const GAP: usize = 2;
/// The width that the second most useful column keeps, however wide the first one is.
const MIN_SECOND: usize = 12;

/// A column of a table, and what becomes of it on a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// The heading.
    pub(super) name: &'static str,
    rank: usize,
    least: usize,
}

impl Column {
    /// Creates a column with its place among the others by usefulness. The columns of ranks 0 and 1 are
    /// always shown; another one is left out if the more useful ones leave too little room.
    pub(crate) const fn new(name: &'static str, rank: usize) -> Self {
        Self { name, rank, least: usize::MAX }
    }

    /// Permits cutting its cells to this width, to keep less useful columns.
    pub(crate) const fn at_least(self, least: usize) -> Self {
        Self { least, ..self }
    }
}

/// The widths of columns that need `natural`, in a table of `width`; `None` for those that are left out. Each
/// column gets the width that it must have, and then the rest goes to the most useful ones.
pub(super) fn fitted<const N: usize>(
    columns: &[Column; N],
    natural: &[usize; N],
    width: usize,
) -> [Option<usize>; N] {
    let mut order: [usize; N] = std::array::from_fn(|at| at);
    order.sort_by_key(|at| columns[*at].rank);
    let (mut widths, mut left) = ([None; N], width);
    for (place, at) in order.into_iter().enumerate() {
        let gap = if place == 0 { 0 } else { GAP };
        let room = left.saturating_sub(gap);
        let least = columns[at].least.min(natural[at]);
        let given = match place {
            0 => natural[at].min(room.saturating_sub(GAP + MIN_SECOND)),
            1 => least.min(room),
            _ if least > room => continue,
            _ => least,
        };
        widths[at] = Some(given);
        left = room - given;
    }
    for at in order {
        if let Some(width) = &mut widths[at] {
            let more = left.min(natural[at] - *width);
            *width += more;
            left -= more;
        }
    }
    widths
}

/// The number of terminal columns that a text takes.
pub(super) fn width_of(text: &str) -> usize {
    text.width()
}

/// Cuts a text to a width; an ellipsis marks the cut.
pub(super) fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let (mut kept, mut left) = (String::new(), width.saturating_sub(1));
    for c in text.chars() {
        match left.checked_sub(c.width().unwrap_or(0)) {
            Some(rest) => left = rest,
            None => break,
        }
        kept.push(c);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column::new("ID", 0), Column::new("SINCE", 2), Column::new("ERROR", 1).at_least(20)];

    #[test]
    fn no_table_is_wider_than_it_may_be() {
        for natural in [[30, 20, 500], [90, 20, 5], [90, 20, 90], [3, 20, 4], [0, 0, 0]] {
            for width in 2 * GAP..200 {
                let widths = fitted(&COLUMNS, &natural, width);
                let shown: Vec<usize> = widths.iter().copied().flatten().collect();
                let taken = shown.iter().sum::<usize>() + GAP * (shown.len() - 1);
                assert!(taken <= width, "{natural:?} {width} {widths:?}");
                let cut = widths.iter().zip(natural).any(|(shown, natural)| *shown != Some(natural));
                assert_eq!(cut, natural.iter().sum::<usize>() + 2 * GAP > width, "{natural:?} {width}");
            }
        }
    }

    #[test]
    fn the_most_useful_columns_stay_and_the_second_gets_the_rest() {
        for (natural, width, expected) in [
            ([30, 20, 500], 100, [Some(30), Some(20), Some(46)]),
            ([30, 20, 500], 74, [Some(30), Some(20), Some(20)]),
            ([30, 20, 500], 73, [Some(30), None, Some(41)]),
            ([90, 20, 500], 80, [Some(66), None, Some(12)]),
            ([90, 20, 5], 80, [Some(73), None, Some(5)]),
        ] {
            assert_eq!(fitted(&COLUMNS, &natural, width), expected, "{natural:?} {width}");
        }
    }

    #[test]
    fn a_cut_text_ends_with_an_ellipsis_and_is_as_wide_as_the_terminal_shows_it() {
        for (text, width, expected) in [
            ("abcdef", 6, "abcdef"),
            ("abcdef", 4, "abc…"),
            ("漢字かな", 5, "漢字…"),
            ("漢字かな", 4, "漢…"),
            ("abc", 1, "…"),
            ("abc", 0, ""),
        ] {
            assert_eq!(cut(text, width), expected, "{text} {width}");
            assert!(width_of(expected) <= width);
        }
    }
}
