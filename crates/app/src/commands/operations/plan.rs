//! The plan of a change: the routes that it would change, and the confirmation question.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use domain::operations::{Plan, PlanCounter, PlanGroup, RouteChange, Selection};
use domain::ports::{Operations, StoreError};
use domain::query::Counted;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Words;
use crate::commands::operators::{Column, Style, print_rows, table};
use crate::commands::output::{print_line, printable};

/// The time limit for counting routes for the plan. The plan reports that there may be more if the
/// limit cuts the count off.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of routes counted in one query.
const PLAN_PAGE: usize = 1_000;

/// The changes that a command would make.
#[derive(Debug)]
pub(super) struct Planned {
    plan: Plan,
    /// The number of ids that name a route which is not in the state that the change needs.
    unchanged: u64,
}

impl Planned {
    /// Counts the selection: completely, if the time limit suffices.
    pub(super) async fn count(
        store: &impl Operations,
        change: &RouteChange,
        selection: &Selection,
    ) -> Result<Self, StoreError> {
        if let Selection::Ids(_) = selection {
            let targets = store.select_routes(change, selection).await?;
            return Ok(Self { plan: targets.plan(), unchanged: targets.unchanged });
        }
        let (begun, mut counter, mut after) = (Instant::now(), PlanCounter::default(), None);
        loop {
            let page = store.list_targets(change, selection, after.as_ref(), PLAN_PAGE).await?;
            counter.add(&page.items);
            after = page.next;
            if after.is_none() || begun.elapsed() > PLAN_TIMEOUT {
                let remaining = Counted { count: 0, capped: after.is_some() };
                return Ok(Self { plan: counter.plan(Vec::new(), remaining), unchanged: 0 });
            }
        }
    }

    /// The number of routes counted.
    pub(super) fn counted(&self) -> u64 {
        self.plan.count.count
    }

    /// The ids that name no route, and the number of ids that name a route which is not in the state that the
    /// change needs.
    pub(super) fn missed(&self) -> (&[String], u64) {
        (&self.plan.unknown, self.unchanged)
    }

    /// The confirmation question; `None` if there is nothing to change.
    pub(super) fn question(&self, words: Words) -> Option<String> {
        let verb = words.verb;
        match self.plan.count {
            Counted { count: 0, capped: false } => None,
            Counted { count: 0, capped: true } => Some(format!("{verb} all that are found?")),
            count => Some(format!("{verb} {}?", words.counted(count))),
        }
    }

    /// Prints the plan. With `is_dry_run` its wording is that of a change that will not happen.
    pub(super) fn print(&self, out: &mut impl Write, words: Words, is_dry_run: bool) -> anyhow::Result<()> {
        let plan = &self.plan;
        let noun = words.nouns[0];
        for id in &plan.unknown {
            print_line(out, &format!("there is no route {}", printable(id)))?;
        }
        match plan.count {
            Counted { count: 0, capped: false } => {
                return print_line(out, &format!("there is no such {noun}"));
            }
            Counted { count: 0, capped: true } => {
                let so_far = "among the rows examined so far; there may be more";
                return print_line(out, &format!("there is no such {noun} {so_far}"));
            }
            _ => {}
        }
        let row = |PlanGroup { channel, group, count }: &PlanGroup| {
            [channel.as_str().into(), printable(group.name()).into(), count.to_string().into()]
        };
        let [group, count] = words.headings;
        let columns = [Column::new("CHANNEL", 0), Column::new(group, 1), Column::new(count, 2)];
        let rows = table(Style::PLAIN, columns, plan.by.iter().map(row));
        print_rows(out, Style::PLAIN, &rows)?;
        print_line(out, "\nThe first of them:")?;
        for key in &plan.first {
            print_line(out, &format!("  {}", printable(&key.to_string())))?;
        }
        let subject = match is_dry_run {
            true => format!("{} would", words.counted(plan.count)),
            false => words.counted_are(plan.count),
        };
        let be = if is_dry_run { "be" } else { "to be" };
        print_line(out, &format!("\n{subject} {be} {}", words.done))
    }

    /// The JSON document of a dry run.
    pub(super) fn document(&self) -> anyhow::Result<Value> {
        let mut planned = serde_json::to_value(&self.plan).context("the plan is no JSON")?;
        planned["dry_run"] = json!(true);
        Ok(planned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dead_letters::REPLAY_WORDS as WORDS;

    fn planned(count: u64, capped: bool) -> Planned {
        let plan = PlanCounter::default().plan(Vec::new(), Counted { count, capped });
        Planned { plan, unchanged: 0 }
    }

    #[test]
    fn a_plan_asks_unless_it_has_examined_everything_and_found_none() {
        for (count, capped, expected) in [
            (0, false, None),
            (0, true, Some("Replay all that are found?")),
            (1, false, Some("Replay 1 dead letter?")),
            (7, false, Some("Replay 7 dead letters?")),
            (20_000, true, Some("Replay at least 20000 dead letters?")),
        ] {
            assert_eq!(planned(count, capped).question(WORDS).as_deref(), expected, "{count} {capped}");
        }
    }

    #[test]
    fn a_plan_that_found_none_so_far_says_that_there_may_be_more() {
        for (capped, expected) in [
            (false, "there is no such dead letter\n"),
            (true, "there is no such dead letter among the rows examined so far; there may be more\n"),
        ] {
            let mut out = Vec::new();
            planned(0, capped).print(&mut out, WORDS, false).expect("memory takes it");
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }
}
