//! HTML of the part of Markdown that the project's pages use: headings, paragraphs, lists, tables, code,
//! links.
//!
//! For pages that are part of the program. Links lead to headings of the same page; others become text.

use std::iter::Peekable;
use std::str::Lines;

use maud::{Markup, html};

use crate::widgets::{Column, column, table};

/// Renders a page without its first heading, which is that of the whole page.
pub(crate) fn render(page: &'static str) -> Markup {
    let mut lines = page.lines().peekable();
    let mut heading = "";
    let mut blocks: Vec<Markup> = Vec::new();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        blocks.push(if text.is_empty() || line.starts_with("# ") {
            continue;
        } else if let Some(title) = line.strip_prefix("## ") {
            heading = title;
            html! { h2 #(anchor(title)) { (inline(title)) } }
        } else if let Some(title) = line.strip_prefix("### ") {
            heading = title;
            html! { h3 #(anchor(title)) { (inline(title)) } }
        } else if text.starts_with("```") {
            html! { pre { code { (code(&mut lines)) } } }
        } else if text.starts_with('|') {
            rows(heading, line, &mut lines)
        } else if text.starts_with("* ") {
            list(line, &mut lines)
        } else {
            html! { p { (inline(&joined(line, &mut lines))) } }
        });
    }
    html! { @for block in &blocks { (block) } }
}

/// The anchor of a heading, as web views of repositories make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

type Rest<'a> = Peekable<Lines<'a>>;

/// The lines up to the end of the block of code.
fn code(lines: &mut Rest<'_>) -> String {
    lines.take_while(|line| !line.trim_start().starts_with("```")).collect::<Vec<_>>().join("\n")
}

/// A line with those that continue it.
fn joined(first: &str, lines: &mut Rest<'_>) -> String {
    let begins =
        |line: &str| line.is_empty() || ["#", "|", "* ", "```"].iter().any(|mark| line.starts_with(mark));
    let mut text = first.trim().to_owned();
    while let Some(line) = lines.next_if(|line| !begins(line.trim_start())) {
        text = format!("{text} {}", line.trim());
    }
    text
}

fn list(first: &str, lines: &mut Rest<'_>) -> Markup {
    let mut items = vec![joined(first, lines)];
    while let Some(line) = lines.next_if(|line| line.trim_start().starts_with("* ")) {
        items.push(joined(line, lines));
    }
    html! { ul { @for item in &items { li { (inline(item.trim_start_matches("* "))) } } } }
}

fn rows(caption: &str, first: &'static str, lines: &mut Rest<'static>) -> Markup {
    let columns: Vec<Column> = cells(first).into_iter().map(column).collect();
    let mut rows: Vec<Vec<Markup>> = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
        if !line.starts_with("|-") {
            rows.push(cells(line).into_iter().map(inline).collect());
        }
    }
    table(caption, &columns, &rows)
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split(" | ").map(str::trim).collect()
}

/// Text with code, strong and emphasised parts and links.
fn inline(text: &str) -> Markup {
    let Some(at) = text.find(['`', '*', '[']) else { return html! { (text) } };
    let (before, rest) = text.split_at(at);
    let (marked, rest) = if let Some((code, rest)) = between(rest, "`", "`") {
        (html! { code { (code) } }, rest)
    } else if let Some((strong, rest)) = between(rest, "**", "**") {
        (html! { strong { (inline(strong)) } }, rest)
    } else if let Some((emphasised, rest)) = between(rest, "*", "*") {
        (html! { em { (inline(emphasised)) } }, rest)
    } else if let Some((label, rest)) = between(rest, "[", "](")
        && let Some((target, rest)) = rest.split_once(')')
    {
        (link(label, target), rest)
    } else {
        let (mark, rest) = rest.split_at(1);
        (html! { (mark) }, rest)
    };
    html! { (before) (marked) (inline(rest)) }
}

/// The text after `start` up to `end`, and what follows.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(start)?.split_once(end).filter(|(inner, _)| !inner.is_empty())
}

fn link(label: &str, target: &str) -> Markup {
    let label = inline(label);
    match target.starts_with('#') {
        true => html! { a href=(target) { (label) } },
        false => html! { (label) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_and_every_mark_has_its_element() {
        let page = "# Page\n\n## One *two*\n\nText `a*b` of\ntwo **lines** and\n[here](#one), [there](other.md#x) [x].\n\n\
            * item\n  goes on\n* other\n  ```\n  <code>\n  ```\n\n### Table: it\n\n| a | b |\n|---|---|\n| `x|y` | 2 * 3 |\n";
        let html = render(page).into_string();
        for expected in [
            "<h2 id=\"one-two\">One <em>two</em></h2>",
            "<p>Text <code>a*b</code> of two <strong>lines</strong> and <a href=\"#one\">here</a>, there [x].</p>",
            "<ul><li>item goes on</li><li>other</li></ul><pre><code>  &lt;code&gt;</code></pre>",
            "<h3 id=\"table-it\">Table: it</h3>",
            "<caption>Table: it</caption>",
            "<div><code>x|y</code></div>",
            "<div>2 * 3</div>",
        ] {
            assert!(html.contains(expected), "{expected}: {html}");
        }
        assert!(!html.contains("Page") && !html.contains("---"), "{html}");
    }
}
