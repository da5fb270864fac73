//! Prints the status as text.

use std::io::Write;
use std::time::Duration;

use ambient::Timestamp;
use domain::query::{CauseCounts, Counted, IntakeStatus, Leader, ReplicaStatus, Status, Stuck, Waiting};

use crate::commands::operators::{Cell, Style, Tone, heading, print_cells};
use crate::commands::output::{print_line, printable};
use crate::config::duration;

/// Prints the status, with stuck parts first.
pub(super) fn print_status(
    out: &mut impl Write,
    style: Style,
    status: &Status,
    stuck: &[Stuck],
    stream: &str,
) -> anyhow::Result<()> {
    let now = status.store.at;
    for thing in stuck {
        let tone = if thing.stops_traffic() { Tone::Bad } else { Tone::Warning };
        let sentence = printable(&thing.sentence(now));
        print_line(out, &format!("{}  {sentence}.", style.paint(tone, "STUCK")))?;
    }
    if !stuck.is_empty() {
        print_line(out, "")?;
    }
    print_cells(
        out,
        style,
        &[
            vec![strong("at"), now.to_string().into()],
            vec![strong("leader"), leader(status.leader.as_ref(), now)],
            vec![strong("stream"), stream.into()],
            vec![strong("intake"), intake(&status.intake, now)],
        ],
    )?;
    section(out, style, "channels", &channels(status))?;
    section(out, style, "dead letters of the last 24 h", &causes(&status.store.dead_letters))?;
    section(out, style, "malformed intents of the last 24 h", &causes(&status.store.malformed_intents))?;
    section(out, style, "replicas", &replicas(&status.store.replicas, now))
}

fn strong(name: &str) -> Cell {
    Cell::strong(name)
}

fn section(out: &mut impl Write, style: Style, name: &str, rows: &[Vec<Cell>]) -> anyhow::Result<()> {
    print_line(out, &format!("\n{}", style.strong(name)))?;
    if rows.is_empty() {
        return print_line(out, "  none");
    }
    print_cells(out, style, rows)
}

fn leader(leader: Option<&Leader>, now: Timestamp) -> Cell {
    let Some(Leader { replica, term }) = leader else { return Cell::new("no replica leads", Tone::Bad) };
    let name = replica.as_deref().map_or_else(|| "(it has not reported its name yet)".to_owned(), printable);
    format!("{name} since {} ({} ago), fence {}", term.since, age(term.since, now), term.fence).into()
}

fn intake(intake: &IntakeStatus, now: Timestamp) -> Cell {
    let checkpoint = intake
        .checkpoint
        .map_or_else(|| "no checkpoint yet".to_owned(), |id| format!("read up to the entry {id}"));
    let behind = match (intake.backlog, intake.oldest) {
        (None, _) => "the stream could not be asked".to_owned(),
        (Some(backlog), _) if backlog.last_entry_id.is_none() => "the stream does not exist".to_owned(),
        (Some(_), None) => "nothing is unread".to_owned(),
        (Some(backlog), Some(oldest)) => {
            format!("{} unread, the first for {}", backlog.entries, age(oldest, now))
        }
    };
    let waits =
        intake.waiting.as_ref().map_or_else(String::new, |waiting| format!("; {}", waits(waiting, now)));
    let tone = if intake.waiting.is_some() { Tone::Warning } else { Tone::Neutral };
    Cell::new(format!("{checkpoint}; {behind}{waits}"), tone)
}

fn waits(Waiting { entry_id, cause, since }: &Waiting, now: Timestamp) -> String {
    let at = entry_id.map_or_else(String::new, |id| format!(" at the entry {id}"));
    format!("waits for {}{at}: {}", age(*since, now), printable(cause))
}

fn channels(status: &Status) -> Vec<Vec<Cell>> {
    let now = status.store.at;
    let mut rows = vec![heading(["  CHANNEL", "DUE", "OLDEST DUE", "FAILING", "WAITS FOR"])];
    for channel in &status.store.channels {
        let waiting = status.publishers.iter().find(|(of, _)| *of == channel.channel);
        let waiting = waiting.and_then(|(_, waiting)| waiting.as_ref());
        let tone = if channel.failing.count > 0 { Tone::Warning } else { Tone::Neutral };
        rows.push(vec![
            format!("  {}", channel.channel).into(),
            channel.due.to_string().into(),
            channel.oldest_due.map_or_else(|| "-".to_owned(), |at| age(at, now)).into(),
            Cell::new(channel.failing.to_string(), tone),
            waiting.map_or_else(|| "nothing".to_owned(), |waiting| waits(waiting, now)).into(),
        ]);
    }
    rows
}

fn causes(causes: &CauseCounts) -> Vec<Vec<Cell>> {
    let row = |(cause, count): &(String, u64)| {
        let count = Counted { count: *count, capped: causes.capped };
        vec![Cell::from(format!("  {}", printable(cause))), count.to_string().into()]
    };
    causes.counts.iter().map(row).collect()
}

fn replicas(replicas: &[ReplicaStatus], now: Timestamp) -> Vec<Vec<Cell>> {
    if replicas.is_empty() {
        return Vec::new();
    }
    let mut rows = vec![heading(["  REPLICA", "VERSION", "STARTED", "SEEN", "LEADER OF", "BLOCKED"])];
    for replica in replicas {
        rows.push(vec![
            format!("  {}", printable(&replica.replica)).into(),
            printable(&replica.version).into(),
            replica.started_at.to_string().into(),
            seen(replica, now),
            listed(&replica.leader_of.iter().map(String::as_str).collect::<Vec<_>>()),
            listed(&replica.blocked()),
        ]);
    }
    rows
}

/// The time of a replica's last report, with a note if the replica counts as gone.
pub(in crate::commands) fn seen(replica: &ReplicaStatus, now: Timestamp) -> Cell {
    let (rest, tone) = if replica.is_running(now) { ("", Tone::Neutral) } else { (" (gone)", Tone::Warning) };
    Cell::new(format!("{} ago{rest}", age(replica.seen_at, now)), tone)
}

fn listed(names: &[&str]) -> Cell {
    if names.is_empty() { "-".into() } else { printable(&names.join(", ")).into() }
}

/// Formats an age in whole seconds.
fn age(since: Timestamp, now: Timestamp) -> String {
    duration::format(Duration::from_secs(now.saturating_since(since).as_secs()))
}

#[cfg(test)]
mod tests {
    use domain::checkpoint::Checkpoint;
    use domain::entry::EntryId;
    use domain::query::{ChannelStatus, LeaderTerm, StoreStatus, StreamBacklog};
    use domain::replica::ReplicaReport;
    use domain::route::Channel;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
    }

    fn printed(term: Option<LeaderTerm>, backlog: Option<StreamBacklog>, stuck: &[Stuck]) -> String {
        let none = Counted::default();
        let channel = |channel| ChannelStatus {
            channel,
            due: Counted { count: 3, capped: false },
            oldest_due: Some(at(90)),
            failing: none,
        };
        let store = StoreStatus {
            at: at(100),
            checkpoint: Some(Checkpoint { fence: 7, last_entry_id: EntryId::new(5, 0) }),
            channels: Channel::ALL.map(channel).into(),
            dead_letters: CauseCounts { counts: vec![("gateway\u{1b}[2J".to_owned(), 2)], capped: true },
            malformed_intents: CauseCounts::default(),
            replicas: Vec::new(),
        };
        let status = Status::new(store, term, backlog);
        let mut out = Vec::new();
        print_status(&mut out, Style::PLAIN, &status, stuck, "intents").expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_status_is_shown_in_aligned_lines() {
        let term = Some(LeaderTerm { since: at(40), fence: 7 });
        let first = EntryId::new(1_775_121_795_000, 0);
        let entries = Counted { count: 2, capped: false };
        let backlog = StreamBacklog { last_entry_id: Some(first), first: Some(first), entries };
        let text = printed(term, Some(backlog), &[]);
        for line in [
            "intake  read up to the entry 5-0; 2 unread, the first for 5s",
            "  CHANNEL  DUE  OLDEST DUE  FAILING  WAITS FOR",
            "  push     3    10s         0        nothing",
            "  gateway\\u{1b}[2J  at least 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} in {text}");
        }
        assert!(text.contains("(1m ago), fence 7\n"), "{text}");
    }

    #[test]
    fn a_replica_that_has_not_reported_itself_for_longer_than_it_counts_as_running_is_gone() {
        for (last, expected) in [(95, "5s ago\n"), (30, "1m10s ago (gone)\n")] {
            let mut out = Vec::new();
            let report = ReplicaReport {
                replica: "notification-0".to_owned(),
                version: "0.1.0".to_owned(),
                started_at: at(0),
                leader_of: Vec::new(),
                workers: Vec::new(),
            };
            let replica = ReplicaStatus::new(report, at(last));
            print_cells(&mut out, Style::PLAIN, &[vec![seen(&replica, at(100))]]).expect("memory takes it");
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }

    #[test]
    fn what_is_stuck_comes_first_and_what_is_not_known_is_said() {
        let stuck = [Stuck::NoLeader { since: at(80) }];
        let text = printed(None, None, &stuck);
        assert!(text.starts_with("STUCK  No replica has led for 20 s, so no intent is read.\n"), "{text}");
        assert!(
            text.contains("no replica leads") && text.contains("the stream could not be asked"),
            "{text}"
        );
    }
}
