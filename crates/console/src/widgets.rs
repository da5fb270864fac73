//! Shared parts of pages: texts from outside, times, counts, states, tables, notices.
//!
//! Everything here produces HTML in which texts are escaped. Texts from outside go through [`visible`]:
//! characters that a reader cannot see, or that reorder the following text, are shown by their number.

use ambient::Timestamp;
pub(crate) use domain::document::{Tone, grouped as number};
use maud::{Markup, html};

use crate::operator::{FORM_TOKEN, Operator};

/// A text from outside. Control characters, characters without width and those that change the direction of
/// text are shown as `U+202E`.
pub(crate) fn visible(text: &str) -> Markup {
    let parts = text.split_inclusive(is_hidden);
    html! {
        @for part in parts {
            @match part.chars().next_back().filter(|last| is_hidden(*last)) {
                Some(hidden) => {
                    (&part[..part.len() - hidden.len_utf8()])
                    span.hidden-char { "U+" (format!("{:04X}", u32::from(hidden))) }
                }
                None => (part),
            }
        }
    }
}

/// A text from outside for places without markup, such as the title of a window: characters that [`visible`]
/// shows by their number are replaced.
pub(crate) fn plain(text: &str) -> String {
    text.replace(is_hidden, "\u{fffd}")
}

/// Line feeds and tabs are visible where white space is kept, and harmless elsewhere.
fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        // The characters of the Unicode property Default_Ignorable_Code_Point, and the blank braille pattern.
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' => true,
        '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}' => true,
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fff0}'..='\u{fffb}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        other => other.is_control(),
    }
}

/// An id, in a fixed width, with a button to copy it if scripts are enabled.
pub(crate) fn id(text: &str) -> Markup {
    html! { code.id data-copy=(text) { (visible(text)) } }
}

/// A time in UTC to the second; a tooltip shows the whole of it.
pub(crate) fn time(at: Timestamp) -> Markup {
    let whole = at.to_string();
    // Up to its second, a time has 19 characters, all ASCII.
    let (date, clock) = (whole.get(..10).unwrap_or_default(), whole.get(11..19).unwrap_or_default());
    html! { time datetime=(whole) title=(whole) { (date) " " (clock) " UTC" } }
}

/// The name of a tone in the style sheet.
pub(crate) fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Busy => "busy",
        Tone::Warning => "warning",
        Tone::Bad => "bad",
        Tone::Neutral => "neutral",
    }
}

fn mark(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "✓",
        Tone::Busy => "↻",
        Tone::Warning => "!",
        Tone::Bad => "✕",
        Tone::Neutral => "•",
    }
}

/// A badge: a status in a word.
pub(crate) fn badge(tone: Tone, text: &str) -> Markup {
    html! {
        span class={ "badge " (class(tone)) } {
            span.mark aria-hidden="true" { (mark(tone)) }
            " " (visible(text))
        }
    }
}

/// The result or the failure of a request, above the content of a page. A screen reader announces it.
pub(crate) fn notice(tone: Tone, content: &Markup) -> Markup {
    let role = if tone == Tone::Bad { "alert" } else { "status" };
    html! { div role=(role) { (callout(tone, content)) } }
}

/// A hint within a page that something needs attention. A screen reader does not announce it, because a part
/// that refreshes itself would be announced again and again.
pub(crate) fn callout(tone: Tone, content: &Markup) -> Markup {
    html! {
        div class={ "notice " (class(tone)) } {
            span.mark aria-hidden="true" { (mark(tone)) }
            div { (content) }
        }
    }
}

/// A replacement for an empty list: that it is empty, and an explanation or advice.
pub(crate) fn empty(what: &str, advice: &str) -> Markup {
    html! {
        div.state.empty {
            p { strong { (what) } }
            p { (advice) }
        }
    }
}

/// A replacement for a part of a page that could not be read, when the others could.
pub(crate) fn failed(what: &str, advice: &str) -> Markup {
    html! {
        div.state.failed role="alert" {
            p { strong { (what) } }
            p { (advice) }
        }
    }
}

/// A note below a list that is not shown completely.
pub(crate) fn too_many(what: &str, advice: &str) -> Markup {
    html! {
        div.state.too-many role="status" {
            p { strong { (what) } " " (advice) }
        }
    }
}

/// The links between the pages of a list. A missing link means that there is nothing in that direction.
pub(crate) fn pager(first: Option<&str>, next: Option<&str>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label="Pages of the list" {
                @if let Some(first) = first { a.button href=(first) { "First page" } }
                @if let Some(next) = next { a.button href=(next) rel="next" { "Next page" } }
            }
        }
    }
}

/// The hidden field that every form needs.
pub(crate) fn form_token(operator: &Operator) -> Markup {
    html! { input type="hidden" name=(FORM_TOKEN) value=(operator.form_token.0); }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// The heading, which is repeated before each value where the table is shown as cards.
    pub(crate) heading: &'static str,
    /// True if the values are numbers.
    pub(crate) is_number: bool,
}

/// A column of texts.
pub(crate) const fn column(heading: &'static str) -> Column {
    Column { heading, is_number: false }
}

/// A column of numbers.
pub(crate) const fn numbers(heading: &'static str) -> Column {
    Column { heading, is_number: true }
}

/// A table, which becomes a list of cards on a narrow screen. The roles are explicit, because browsers drop
/// them in that layout. The first cell of a row is its heading. `rows` have a cell for each column.
pub(crate) fn table(caption: &str, columns: &[Column], rows: &[Vec<Markup>]) -> Markup {
    html! {
        table.cards role="table" {
            caption { (caption) }
            thead role="rowgroup" {
                tr role="row" {
                    @for column in columns {
                        th scope="col" role="columnheader" .number[column.is_number] { (column.heading) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for row in rows {
                    tr role="row" {
                        @for (index, (column, cell)) in columns.iter().zip(row).enumerate() {
                            @if index == 0 {
                                th scope="row" role="rowheader" .number[column.is_number] data-label=(column.heading) { div { (cell) } }
                            } @else {
                                td role="cell" .number[column.is_number] data-label=(column.heading) { div { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_outside_is_escaped_and_what_it_hides_is_shown() {
        let shown = visible("<b>&\"'\u{202e}evil\u{0}\u{200b}").into_string();
        let expected = "&lt;b&gt;&amp;&quot;'<span class=\"hidden-char\">U+202E</span>evil\
            <span class=\"hidden-char\">U+0000</span><span class=\"hidden-char\">U+200B</span>";
        assert_eq!(shown, expected);
        assert_eq!(visible("two\nlines\täß漢").into_string(), "two\nlines\täß漢");
        assert_eq!(plain("a\u{202e}b<"), "a\u{fffd}b<");
        for hidden in ['\u{34f}', '\u{fe0f}', '\u{2800}', '\u{17b4}', '\u{180b}', '\u{e0101}'] {
            assert!(is_hidden(hidden), "{hidden:?}");
        }
    }

    #[test]
    fn a_time_is_shown_in_utc_to_the_second() {
        let at = "2026-04-02T09:21:40.123456Z".parse().expect("a time");
        let expected = "<time datetime=\"2026-04-02T09:21:40.123456Z\" title=\"2026-04-02T09:21:40.123456Z\">2026-04-02 09:21:40 UTC</time>";
        assert_eq!(time(at).into_string(), expected);
    }
}
