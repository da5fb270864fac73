//! A chart, as SVG without inline styles: colours and lines are classes of the style sheet.

use ambient::Timestamp;
use maud::{Markup, html};

use crate::widgets::{column, number, numbers, table, time};

/// The size of the drawing, in its own units. It is small, so that its text is legible on a telephone.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 168.0;
/// The area of the lines: left, top, right and bottom. Labels of the axis have at most five characters.
const AREA: [f64; 4] = [44.0, 10.0, 392.0, 140.0];

/// The unit of the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// Numbers of intents or routes; the legend has their sums.
    Count,
    /// Durations in milliseconds; the legend has their maximum.
    Milliseconds,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The name of the value.
    pub(crate) label: &'static str,
    /// The value of each step; `None` interrupts the line.
    pub(crate) values: Vec<Option<u64>>,
}

/// A chart with at most three lines.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The id, unique in the page.
    pub(crate) id: &'static str,
    /// The heading.
    pub(crate) title: String,
    /// The period in words, such as `the last hour`.
    pub(crate) period: &'static str,
    /// The unit of the values.
    pub(crate) unit: Unit,
    /// The beginning of each step, the oldest first.
    pub(crate) steps: Vec<Timestamp>,
    /// The lines.
    pub(crate) lines: Vec<Line>,
}

impl Unit {
    /// The value in full.
    fn whole(self, value: u64) -> String {
        match self {
            Self::Count => number(value),
            Self::Milliseconds => self.short(value),
        }
    }

    /// The value in at most five characters, as long as it is below a trillion.
    fn short(self, value: u64) -> String {
        let units: &[(u64, &str)] = match self {
            Self::Count => &[(1, ""), (1_000, "k"), (1_000_000, "M"), (1_000_000_000, "G")],
            Self::Milliseconds => &[(1, " ms"), (1_000, " s"), (60_000, " min"), (3_600_000, " h")],
        };
        // Four digits need no unit, as on a scale to 2,000.
        let is_large = |(size, _): &&(u64, &str)| value >= *size && !(self == Self::Count && value < 10_000);
        let (size, unit) = units.iter().rev().find(is_large).copied().unwrap_or(units[0]);
        match (value % size * 10 / size, size) {
            (_, 1) => format!("{}{unit}", number(value)),
            (0, _) => format!("{}{unit}", value / size),
            (tenth, _) => format!("{}.{tenth}{unit}", value / size),
        }
    }

    fn summary(self, line: &Line, period: &str) -> String {
        let most = line.values.iter().flatten().max().copied();
        let Line { label, .. } = line;
        match (self, most) {
            (Self::Count, most) => {
                let (sum, most) = (line.sum(), most.unwrap_or(0));
                format!("{label}: {} in {period}, at most {} at once", number(sum), number(most))
            }
            (Self::Milliseconds, Some(most)) => format!("{label}: at most {} in {period}", self.short(most)),
            (Self::Milliseconds, None) => format!("{label}: nothing in {period}"),
        }
    }
}

impl Line {
    fn sum(&self) -> u64 {
        self.values.iter().flatten().sum()
    }

    fn has_values(&self) -> bool {
        self.values.iter().flatten().any(|value| *value > 0)
    }
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

    /// The legend: the lines with their sums, or their largest values.
    fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for (index, line) in self.lines.iter().enumerate() {
                    li {
                        svg.key viewBox="0 0 24 8" width="24" height="8" aria-hidden="true" focusable="false" {
                            line class={ "line line-" (index) } x1="0" y1="4" x2="24" y2="4" {}
                        }
                        " " (line.label) " "
                        strong {
                            @match (self.unit, line.values.iter().flatten().max()) {
                                (Unit::Count, _) => (number(line.sum())),
                                (unit, Some(most)) => { "up to " (unit.short(*most)) },
                                (_, None) => "–",
                            }
                        }
                    }
                }
            }
        }
    }

    fn drawing(&self) -> Markup {
        let [left, top, right, bottom] = AREA;
        let most = self.lines.iter().flat_map(|line| &line.values).flatten().max().copied().unwrap_or(0);
        let (scale, parts) = scale(most);
        let title = format!("{}-svg-title", self.id);
        let clock = |index: usize| self.steps.get(index).map(|at| at.to_string()[11..16].to_owned());
        let last = self.steps.len().saturating_sub(1);
        let labels = [(left, "start", 0), ((left + right) / 2.0, "middle", last / 2), (right, "end", last)];
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-labelledby=(title) focusable="false" {
                title #(title) { (self.summary()) }
                @for part in 0..=parts {
                    @let y = bottom - (bottom - top) * part as f64 / parts as f64;
                    line.rule x1=(left) y1=(y) x2=(right) y2=(y) {}
                    text.tick x=(left - 6.0) y=(y + 4.0) text-anchor="end" { (self.unit.short(scale / parts * part)) }
                }
                @for (x, anchor, index) in labels {
                    @if let Some(clock) = clock(index) {
                        text.tick x=(x) y=(HEIGHT - 10.0) text-anchor=(anchor) { (clock) }
                    }
                }
                // The first line is drawn last, above the others. A line of zeros would only hide the axis.
                @for (index, line) in self.lines.iter().enumerate().rev() {
                    @if index == 0 || line.has_values() {
                        @for points in runs(&line.values, scale) {
                            polyline class={ "line line-" (index) } points=(points) {}
                        }
                    }
                }
            }
        }
    }

    /// Describes the drawing in words.
    fn summary(&self) -> String {
        let lines = self.lines.iter().map(|line| self.unit.summary(line, self.period));
        format!("{}. {}.", self.title, lines.collect::<Vec<_>>().join("; "))
    }

    /// The steps in which something happened, the newest first.
    fn table(&self) -> Markup {
        let headings = self.lines.iter().map(|line| numbers(line.label));
        let columns: Vec<_> = std::iter::once(column("From")).chain(headings).collect();
        let value = |line: &Line, index: usize| line.values.get(index).copied().flatten();
        let row = |(index, step): (usize, &Timestamp)| -> Option<Vec<Markup>> {
            let values: Vec<Option<u64>> = self.lines.iter().map(|line| value(line, index)).collect();
            values.iter().flatten().any(|value| *value > 0).then_some(())?;
            let shown =
                |value: Option<u64>| value.map_or_else(|| "–".to_owned(), |value| self.unit.whole(value));
            let cells = values.into_iter().map(|value| html! { (shown(value)) });
            Some(std::iter::once(time(*step)).chain(cells).collect())
        };
        let rows: Vec<Vec<Markup>> = self.steps.iter().enumerate().rev().filter_map(row).collect();
        if rows.is_empty() {
            return html! { p.soft { "Nothing happened in " (self.period) "." } };
        }
        table(&self.title, &columns, &rows)
    }
}

/// The value at the top of the drawing, and the number of steps below it: at most five, each of 1, 2, 5, 10,
/// 20, 50, …
fn scale(most: u64) -> (u64, u64) {
    let mut unit: u64 = 1;
    loop {
        for size in [1, 2, 5] {
            let step = unit.saturating_mul(size);
            if step.saturating_mul(5) >= most {
                let parts = most.div_ceil(step).max(2);
                return (step.saturating_mul(parts), parts);
            }
        }
        unit = unit.saturating_mul(10);
    }
}

/// The points of each part of a line between interruptions. A single value is a short stroke.
fn runs(values: &[Option<u64>], scale: u64) -> Vec<String> {
    let [left, top, right, bottom] = AREA;
    let width = (right - left) / values.len().saturating_sub(1).max(1) as f64;
    let mut runs: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    for (index, value) in values.iter().enumerate() {
        match (value, runs.last_mut()) {
            (Some(value), Some(run)) => {
                let y = bottom - (bottom - top) * (*value as f64 / scale as f64).min(1.0);
                run.push((left + width * index as f64, y));
            }
            _ => runs.push(Vec::new()),
        }
    }
    let drawn = |mut run: Vec<(f64, f64)>| {
        if let [(x, y)] = run[..] {
            run = vec![((x - width / 2.0).max(left), y), ((x + width / 2.0).min(right), y)];
        }
        run.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
    };
    runs.into_iter().filter(|run| !run.is_empty()).map(drawn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_has_at_most_five_steps_of_1_2_or_5_and_room_for_the_largest_value() {
        let scales = [0, 1, 3, 6, 11, 35, 99, 101, 540_000, 2_160_000].map(|most| scale(most).0);
        assert_eq!(scales, [2, 2, 3, 6, 15, 40, 100, 150, 600_000, 2_500_000]);
        for most in 1..2_000 {
            let (scale, parts) = scale(most);
            assert!(scale % parts == 0 && scale >= most && (2..=5).contains(&parts), "{most}");
        }
        assert!(scale(u64::MAX).0 >= u64::MAX / 5 * 4);
    }

    #[test]
    fn labels_of_the_axis_are_short_up_to_billions_a_minute() {
        let counts = [0, 999, 2_000, 10_000, 500_000, 2_000_000, 2_500_000, 1_000_000_000];
        let expected = ["0", "999", "2,000", "10k", "500k", "2M", "2.5M", "1G"];
        assert_eq!(counts.map(|count| Unit::Count.short(count)), expected);
        let times = [25, 2_500, 10_000, 60_000, 600_000].map(|time| Unit::Milliseconds.short(time));
        assert_eq!(times, ["25 ms", "2.5 s", "10 s", "1 min", "10 min"]);
    }

    #[test]
    fn a_line_goes_from_edge_to_edge_and_from_bottom_to_top_and_is_interrupted_where_there_is_no_value() {
        assert_eq!(runs(&[0, 5, 10].map(Some), 10), ["44.0,140.0 218.0,75.0 392.0,10.0"]);
        assert_eq!(runs(&[Some(10), None, Some(0)], 10), ["44.0,10.0 131.0,10.0", "305.0,140.0 392.0,140.0"]);
        assert!(runs(&[], 2).is_empty());
    }

    #[test]
    fn a_chart_says_in_words_what_it_draws_and_its_table_leaves_out_zeros() {
        let steps = ["2026-04-02T09:20:00Z", "2026-04-02T09:21:00Z", "2026-04-02T09:22:00Z"];
        let chart = Chart {
            id: "c",
            title: "Intents a minute".to_owned(),
            period: "the last hour",
            unit: Unit::Count,
            steps: steps.map(|at| at.parse().expect("a time")).into(),
            lines: vec![Line { label: "accepted", values: vec![Some(7), Some(0), Some(1_200)] }],
        };
        let html = chart.render().into_string();
        let summary = "Intents a minute. accepted: 1,207 in the last hour, at most 1,200 at once.";
        assert!(html.contains(summary), "{html}");
        assert!(html.contains("data-label=\"accepted\"><div>1,200</div></td>"), "{html}");
        assert!(html.contains("09:22:00") && !html.contains("09:21:00"), "{html}");
        assert!(!html.contains("style="), "{html}");
        let quiet = Chart { lines: Vec::new(), ..chart }.render().into_string();
        assert!(quiet.contains("Nothing happened in the last hour."), "{quiet}");
    }
}
