//! A chart of the last hour, as SVG without inline styles: colours and lines are classes of the style sheet.

use ambient::Timestamp;
use maud::{Markup, html};

use crate::widgets::{column, number, numbers, table, time};

/// The size of the drawing, in its own units. It is small, so that its text is legible on a telephone.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 168.0;
/// The area of the lines: left, top, right and bottom.
const AREA: [f64; 4] = [40.0, 10.0, 392.0, 140.0];

/// A line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The name of the counted thing.
    pub(crate) label: &'static str,
    /// The count of each minute.
    pub(crate) counts: Vec<u64>,
}

/// A chart with at most three lines.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The id, unique in the page.
    pub(crate) id: &'static str,
    /// The heading.
    pub(crate) title: &'static str,
    /// The minutes, the oldest first.
    pub(crate) minutes: Vec<Timestamp>,
    /// The lines.
    pub(crate) lines: Vec<Line>,
}

impl Chart {
    /// Renders the drawing, a legend, and the same numbers as a table.
    pub(crate) fn render(&self) -> Markup {
        html! {
            figure.chart aria-labelledby=(format!("{}-title", self.id)) {
                h2 #(format!("{}-title", self.id)) { (self.title) }
                (self.legend())
                (self.drawing())
                details #(format!("{}-table", self.id)) {
                    summary { "As a table" }
                    (self.table())
                }
            }
        }
    }

    /// The legend: the lines with their sums.
    fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for (index, line) in self.lines.iter().enumerate() {
                    li {
                        svg.key viewBox="0 0 24 8" width="24" height="8" aria-hidden="true" focusable="false" {
                            line class={ "line line-" (index) } x1="0" y1="4" x2="24" y2="4" {}
                        }
                        " " (line.label) " "
                        strong { (number(line.counts.iter().sum())) }
                    }
                }
            }
        }
    }

    fn drawing(&self) -> Markup {
        let [left, top, right, bottom] = AREA;
        let scale = scale(self.lines.iter().flat_map(|line| &line.counts).copied().max().unwrap_or(0));
        let title = format!("{}-svg-title", self.id);
        let clock = |index: usize| self.minutes.get(index).map(|at| at.to_string()[11..16].to_owned());
        let last = self.minutes.len().saturating_sub(1);
        let labels = [(left, "start", 0), ((left + right) / 2.0, "middle", last / 2), (right, "end", last)];
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-labelledby=(title) focusable="false" {
                title #(title) { (self.summary()) }
                @for part in 0..=2 {
                    @let y = bottom - (bottom - top) * f64::from(part) / 2.0;
                    line.rule x1=(left) y1=(y) x2=(right) y2=(y) {}
                    text.tick x=(left - 6.0) y=(y + 4.0) text-anchor="end" { (number(scale / 2 * u64::from(part as u8))) }
                }
                @for (x, anchor, index) in labels {
                    @if let Some(clock) = clock(index) {
                        text.tick x=(x) y=(HEIGHT - 10.0) text-anchor=(anchor) { (clock) }
                    }
                }
                // The first line is drawn last, above the others. A line of zeros would only hide the axis.
                @for (index, line) in self.lines.iter().enumerate().rev() {
                    @if index == 0 || line.counts.iter().any(|count| *count > 0) {
                        polyline class={ "line line-" (index) } points=(points(&line.counts, scale)) {}
                    }
                }
            }
        }
    }

    /// Describes the drawing in words.
    fn summary(&self) -> String {
        let lines = self.lines.iter().map(|line| {
            let (sum, most) = (line.counts.iter().sum(), line.counts.iter().max().copied().unwrap_or(0));
            format!("{}: {} in the last hour, at most {} a minute", line.label, number(sum), number(most))
        });
        format!("{}. {}.", self.title, lines.collect::<Vec<_>>().join("; "))
    }

    fn table(&self) -> Markup {
        let headings = self.lines.iter().map(|line| numbers(line.label));
        let columns: Vec<_> = std::iter::once(column("Minute")).chain(headings).collect();
        let cell =
            |line: &Line, index: usize| html! { (number(line.counts.get(index).copied().unwrap_or(0))) };
        let row = |(index, minute): (usize, &Timestamp)| {
            let cells = self.lines.iter().map(|line| cell(line, index));
            std::iter::once(time(*minute)).chain(cells).collect()
        };
        let rows: Vec<Vec<Markup>> = self.minutes.iter().enumerate().rev().map(row).collect();
        table(self.title, &columns, &rows)
    }
}

/// The count at the top of the drawing: the next of 2, 4, 10, 20, 40, 100, … that is not less than `most`.
fn scale(most: u64) -> u64 {
    let mut unit: u64 = 1;
    loop {
        for step in [2, 4, 10] {
            let scale = unit.saturating_mul(step);
            if scale >= most {
                return scale;
            }
        }
        unit = unit.saturating_mul(10);
    }
}

fn points(counts: &[u64], scale: u64) -> String {
    let [left, top, right, bottom] = AREA;
    let steps = counts.len().saturating_sub(1).max(1) as f64;
    let point = |(index, count): (usize, &u64)| {
        let x = left + (right - left) * index as f64 / steps;
        let y = bottom - (bottom - top) * (*count as f64 / scale as f64).min(1.0);
        format!("{x:.1},{y:.1}")
    };
    counts.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_has_room_for_the_largest_count_and_a_whole_number_in_its_middle() {
        let scales = [0, 1, 2, 3, 4, 5, 10, 11, 35, 99, 101, 1_000_000].map(scale);
        assert_eq!(scales, [2, 2, 2, 4, 4, 10, 10, 20, 40, 100, 200, 1_000_000]);
        assert_eq!(scale(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_line_goes_from_edge_to_edge_and_from_bottom_to_top() {
        assert_eq!(points(&[0, 5, 10], 10), "40.0,140.0 216.0,75.0 392.0,10.0");
        assert_eq!(points(&[], 2), "");
    }

    #[test]
    fn a_chart_says_in_words_and_as_a_table_what_it_draws() {
        let minutes = ["2026-04-02T09:20:00Z", "2026-04-02T09:21:00Z"].map(|at| at.parse().expect("a time"));
        let lines = vec![Line { label: "accepted", counts: vec![7, 1_200] }];
        let html = Chart { id: "c", title: "Intents a minute", minutes: minutes.into(), lines }
            .render()
            .into_string();
        let summary = "Intents a minute. accepted: 1,207 in the last hour, at most 1,200 a minute.";
        assert!(html.contains(summary), "{html}");
        assert!(html.contains("data-label=\"accepted\"><div>1,200</div></td>"), "{html}");
        assert!(!html.contains("style="), "{html}");
    }
}
