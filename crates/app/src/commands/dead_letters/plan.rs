//! The plan of `dead-letters replay` and `discard`: the changes they would make, and the confirmation
//! question.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use domain::operations::{DeadLetterChange, Plan, PlanCounter, PlanGroup, Selection};
use domain::ports::{Operations, StoreError};
use domain::query::Counted;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::commands::operators::{Column, Style, print_rows, table};
use crate::commands::output::{print_line, printable};

/// The time limit for counting dead letters for the plan. The plan reports that there may be more if the
/// limit cuts the count off.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of dead letters counted in one query.
const PLAN_PAGE: usize = 1_000;

/// The words for a change in messages.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The name of the command.
    pub(super) command: &'static str,
    /// The participle for dead letters after the change.
    pub(super) done: &'static str,
}

/// The changes that a command would make.
#[derive(Debug)]
pub(super) struct Planned {
    plan: Plan,
    /// The number of ids that name a route which is not such a dead letter.
    unchanged: u64,
}

impl Planned {
    /// Counts the selection: completely, if the time limit suffices.
    pub(super) async fn count(
        store: &impl Operations,
        change: &DeadLetterChange,
        selection: &Selection,
    ) -> Result<Self, StoreError> {
        let filter = match selection {
            Selection::Ids(_) => {
                let targets = store.select_dead_letters(change, selection).await?;
                return Ok(Self { plan: targets.plan(), unchanged: targets.unchanged });
            }
            Selection::Filter(filter) => filter,
        };
        let (begun, mut counter, mut after) = (Instant::now(), PlanCounter::default(), None);
        loop {
            let page = store.list_targets(filter, after.as_ref(), PLAN_PAGE).await?;
            counter.add(&page.items);
            after = page.next;
            if after.is_none() || begun.elapsed() > PLAN_TIMEOUT {
                let remaining = Counted { count: 0, capped: after.is_some() };
                return Ok(Self { plan: counter.plan(Vec::new(), remaining), unchanged: 0 });
            }
        }
    }

    /// The number of dead letters counted.
    pub(super) fn counted(&self) -> u64 {
        self.plan.count.count
    }

    /// The ids that name no route, and the number of ids that name a route which is not such a dead letter.
    pub(super) fn missed(&self) -> (&[String], u64) {
        (&self.plan.unknown, self.unchanged)
    }

    /// The confirmation question; `None` if there is nothing to change.
    pub(super) fn question(&self, words: Words) -> Option<String> {
        let verb = capitalised(words.command);
        match self.plan.count {
            Counted { count: 0, capped: false } => None,
            Counted { count: 0, capped: true } => Some(format!("{verb} all that are found?")),
            count => Some(format!("{verb} {}?", letters(count))),
        }
    }

    /// Prints the plan. With `is_dry_run` its wording is that of a change that will not happen.
    pub(super) fn print(&self, out: &mut impl Write, words: Words, is_dry_run: bool) -> anyhow::Result<()> {
        let plan = &self.plan;
        for id in &plan.unknown {
            print_line(out, &format!("there is no route {}", printable(id)))?;
        }
        match plan.count {
            Counted { count: 0, capped: false } => return print_line(out, "there is no such dead letter"),
            Counted { count: 0, capped: true } => {
                return print_line(
                    out,
                    "there is no such dead letter among the rows examined so far; there may be more",
                );
            }
            _ => {}
        }
        let row = |PlanGroup { channel, classification, count }: &PlanGroup| {
            [channel.as_str().into(), printable(classification).into(), count.to_string().into()]
        };
        let columns = [Column::new("CHANNEL", 0), Column::new("CAUSE", 1), Column::new("DEAD LETTERS", 2)];
        let rows = table(Style::PLAIN, columns, plan.by.iter().map(row));
        print_rows(out, Style::PLAIN, &rows)?;
        print_line(out, "\nThe first of them:")?;
        for key in &plan.first {
            print_line(out, &format!("  {}", printable(&key.to_string())))?;
        }
        let subject =
            if is_dry_run { format!("{} would", letters(plan.count)) } else { letters_are(plan.count) };
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

fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    format!("{}{rest}", first.to_ascii_uppercase())
}

/// Formats a count of dead letters with its noun.
fn letters(count: Counted) -> String {
    let noun = if is_one(count) { "dead letter" } else { "dead letters" };
    format!("{count} {noun}")
}

/// Formats a count of dead letters as the subject of a sentence, with its verb.
pub(super) fn letters_are(count: Counted) -> String {
    let verb = if is_one(count) { "is" } else { "are" };
    format!("{} {verb}", letters(count))
}

fn is_one(count: Counted) -> bool {
    count == Counted { count: 1, capped: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words = Words { command: "replay", done: "replayed" };

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
