//! The output of `audit`: discrepancies as they are found, figures at the end.

use std::collections::HashSet;
use std::io::Write;

use ambient::Timestamp;
use domain::audit::{Discrepancy, DiscrepancyKind, Figures, Subject};
use domain::route::RouteKey;
use serde_json::{Value, json};
use workers::AuditReport;

use crate::commands::operators::{Cell, Progress, Style, Tone, print_rows};
use crate::commands::output::{print_json, print_line, printable};

/// The most discrepancies printed as text; `--json` prints all of them.
const MAX_PRINTED: u64 = 100;
/// The most overdue routes that are listed by id; all are counted.
const MAX_NAMED_STUCK: usize = 20;

/// Prints discrepancies to `out`. A write error is kept until the end.
pub(super) struct Report<'a, W> {
    json: bool,
    style: Style,
    out: &'a mut W,
    progress: Option<Progress>,
    failed: anyhow::Result<()>,
    printed: u64,
    /// The kinds whose cause and remedy are printed.
    explained: HashSet<DiscrepancyKind>,
    /// The first overdue routes, with the times at which they were due.
    stuck: Vec<(RouteKey, Timestamp)>,
}

impl<'a, W: Write> Report<'a, W> {
    pub(super) fn new(json: bool, style: Style, out: &'a mut W) -> Self {
        let progress = Some(Progress::counting("entries and records"));
        let explained = HashSet::new();
        Self { json, style, out, progress, failed: Ok(()), printed: 0, explained, stuck: Vec::new() }
    }

    /// Prints the figures. Returns the first write error, if any.
    pub(super) fn finish(
        mut self,
        figures: &Figures,
        range: (Option<Timestamp>, Timestamp),
    ) -> anyhow::Result<()> {
        self.clear();
        self.failed?;
        if self.json {
            return print_json(self.out, &summary(figures, &self.stuck, range));
        }
        if !self.explained.is_empty() {
            print_line(
                self.out,
                "docs/operations.md#audit has the statements and more about each discrepancy",
            )?;
        }
        if figures.discrepancies > self.printed {
            let more = figures.discrepancies - self.printed;
            print_line(self.out, &format!("… and {more} more: --json prints all"))?;
        }
        for (route, due) in &self.stuck {
            let kind = self.style.paint(Tone::Warning, "stuck");
            print_line(self.out, &format!("{kind}  {}  it was due at {due}", printable(&route.to_string())))?;
        }
        if !self.stuck.is_empty() {
            print_line(
                self.out,
                "  notification status says why; nothing is lost, they are published once that is over",
            )?;
        }
        if figures.discrepancies > 0 || !self.stuck.is_empty() {
            print_line(self.out, "")?;
        }
        print_rows(self.out, self.style, &rows(figures, range))
    }

    fn clear(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.finish();
        }
    }

    fn print(&mut self, found: &Discrepancy) -> anyhow::Result<()> {
        if self.json {
            return print_json(self.out, &document(found));
        }
        if self.printed == MAX_PRINTED {
            return Ok(());
        }
        self.printed += 1;
        let kind = self.style.paint(Tone::Bad, found.kind.as_str());
        let (subject, detail) = (printable(&found.subject.to_string()), printable(&found.detail));
        print_line(self.out, &format!("{kind}  {subject}  {detail}"))?;
        // Once for each kind: a hundred lines with the same advice would hide it.
        if self.explained.insert(found.kind) {
            print_line(self.out, &format!("  cause:   {}", found.kind.cause()))?;
            print_line(self.out, &format!("  remedy:  {}", found.kind.remedy()))?;
        }
        Ok(())
    }
}

impl<W: Write> AuditReport for Report<'_, W> {
    fn found(&mut self, discrepancy: &Discrepancy) {
        if self.failed.is_ok() {
            self.clear();
            self.failed = self.print(discrepancy);
        }
    }

    fn stuck(&mut self, route: &RouteKey, due: Timestamp) {
        if self.stuck.len() < MAX_NAMED_STUCK {
            self.stuck.push((route.clone(), due));
        }
    }

    fn progress(&mut self, figures: &Figures) {
        let Figures { entries, records, outbound, .. } = figures;
        let done = entries.sum() + records + outbound.sum();
        self.progress.get_or_insert_with(|| Progress::counting("entries and records")).show(done);
    }
}

/// One discrepancy as a line of JSON.
fn document(found: &Discrepancy) -> Value {
    let Discrepancy { kind, detail, .. } = found;
    let mut document = json!({
        "discrepancy": kind.as_str(),
        "detail": detail,
        "cause": kind.cause(),
        "remedy": kind.remedy(),
    });
    let mut set = |name: &str, value: String| document[name] = Value::from(value);
    match &found.subject {
        Subject::Stream(stream) => set("stream", stream.clone()),
        Subject::Entry { stream, id } => {
            set("stream", stream.clone());
            set("entry_id", id.to_string());
        }
        Subject::Notification(id) => set("notification_id", id.to_string()),
        Subject::Route(key) => {
            set("notification_id", key.notification_id.to_string());
            set("route_id", key.route_id.clone());
        }
    }
    document
}

/// The summary: the last line of JSON.
fn summary(
    figures: &Figures,
    stuck: &[(RouteKey, Timestamp)],
    (since, until): (Option<Timestamp>, Timestamp),
) -> Value {
    let stuck_routes: Vec<String> = stuck.iter().map(|(route, _)| route.to_string()).collect();
    let Figures { entries, records, routes, published, outbound, discrepancies } = figures;
    let by_status: serde_json::Map<String, Value> =
        routes.by_status().map(|(status, count)| (status.as_str().to_owned(), count.into())).collect();
    json!({
        "since": since.map(|since| since.to_string()),
        "until": until.to_string(),
        "entries": entries,
        "records": records,
        "routes": by_status,
        "stuck": routes.stuck,
        "stuck_routes": stuck_routes,
        "published_entries": published,
        "outbound_entries": outbound,
        "discrepancies": discrepancies,
    })
}

/// The summary as text: a name, a figure and its meaning in each row.
fn rows(figures: &Figures, (since, until): (Option<Timestamp>, Timestamp)) -> Vec<Vec<Cell>> {
    let Figures { entries, records, routes, published, outbound, discrepancies } = figures;
    let since = since.map_or_else(|| "the beginning".to_owned(), |since| since.to_string());
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut group = |name: &'static str, counts: &[(&'static str, u64, Tone)]| {
        let mut name = Some(name);
        for (what, count, tone) in counts {
            let tone = if *count == 0 { Tone::Neutral } else { *tone };
            let heading = Cell::strong(name.take().unwrap_or_default());
            rows.push(vec![heading, Cell::from(*what), Cell::new(count.to_string(), tone)]);
        }
    };
    group(
        "intents stream",
        &[
            ("accepted", entries.accepted, Tone::Neutral),
            ("duplicate", entries.duplicate, Tone::Neutral),
            ("conflict", entries.conflict, Tone::Neutral),
            ("malformed", entries.malformed, Tone::Neutral),
            ("not read yet", entries.not_read, Tone::Neutral),
            ("outcome expired", entries.expired, Tone::Neutral),
            ("not readable in time", entries.not_compared, Tone::Warning),
        ],
    );
    group("records", &[("", *records, Tone::Neutral)]);
    let mut by_status: Vec<(&'static str, u64, Tone)> =
        routes.by_status().map(|(status, count)| (status.as_str(), count, Tone::Neutral)).collect();
    by_status.push(("stuck", routes.stuck, Tone::Warning));
    group("routes", &by_status);
    group(
        "entries of published routes",
        &[
            ("in their stream", published.present, Tone::Neutral),
            ("trimmed", published.trimmed, Tone::Neutral),
            ("deleted by a consumer", published.deleted, Tone::Neutral),
            ("their stream is absent", published.no_stream, Tone::Neutral),
        ],
    );
    group(
        "outbound streams",
        &[
            ("of published routes", outbound.published, Tone::Neutral),
            ("completion not committed", outbound.uncommitted, Tone::Neutral),
            ("route expired", outbound.expired, Tone::Neutral),
            ("not of this service, or not readable", outbound.other, Tone::Neutral),
        ],
    );
    group("discrepancies", &[("", *discrepancies, Tone::Bad)]);
    rows.push(vec!["time range".into(), format!("{since} to {until}").into()]);
    rows
}
