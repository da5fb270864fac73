//! Prints the status as text.

use std::io::Write;

use domain::query::{
    CauseCounts, ChannelStatus, Counted, CulpritList, Culprits, IntakeStatus, Leader, ReplicaStatus, Status,
    Waiting,
};

use crate::commands::holds::holds;
use crate::commands::operators::{
    Cell, Column, CommandLine, Style, Tone, print_members, print_section, table,
};
use crate::commands::output::{print_line, printable};

/// Prints the status, with findings first.
pub(super) fn print_status(out: &mut impl Write, style: Style, status: &Status) -> anyhow::Result<()> {
    for finding in &status.findings {
        let word = style.paint(finding.state.tone(), &finding.state.as_str().to_uppercase());
        print_line(out, &format!("{word}  {}.", printable(&finding.text())))?;
        let since = finding.since.map_or_else(String::new, |since| format!("since {since}; "));
        print_line(out, &format!("  {since}see {}", finding.runbook))?;
        if let Some(culprits) = &finding.culprits {
            print_line(out, &format!("  list: {}", list_command(culprits)))?;
        }
    }
    if !status.findings.is_empty() {
        print_line(out, "")?;
    }
    let members = [
        ("state", Cell::new(status.state.as_str(), status.state.tone())),
        ("at", status.store.at.to_string().into()),
        ("leader", leader(status)),
        ("stream", (&*status.intake.stream).into()),
        ("intake", intake(&status.intake)),
    ];
    print_members(out, style, members)?;
    let store = &status.store;
    print_section(out, style, "channels", &channels(style.in_section(), status))?;
    print_section(out, style, "holds", &holds(style.in_section(), &store.holds, store.at))?;
    print_section(out, style, "dead letters of the last 24 h", &causes(&store.dead_letters))?;
    print_section(out, style, "malformed intents of the last 24 h", &causes(&store.malformed_intents))?;
    print_section(out, style, "bounced and complained of the last 24 h", &causes(&store.receipts))?;
    print_section(out, style, "replicas", &replicas(style.in_section(), status))
}

/// The command that lists the culprits of a finding.
fn list_command(Culprits { list, conditions }: &Culprits) -> String {
    let of = |name| conditions.get(name);
    let command = match (list, of("notification_id")) {
        (CulpritList::Notifications, Some(id)) => return format!("notification show {}", printable(id)),
        (CulpritList::Notifications, None) => {
            CommandLine::new("notification list").option("--status", of("route.status"))
        }
        (CulpritList::DeadLetters, _) => CommandLine::new("notification dead-letters list")
            .option("--channel", of("channel"))
            .option("--since", of("created_after")),
        (CulpritList::MalformedIntents, _) => CommandLine::new("notification malformed list")
            .option("--producer", of("producer"))
            .option("--since", of("recorded_after")),
    };
    command.into_text()
}

fn leader(status: &Status) -> Cell {
    let Some(Leader { replica, term }) = &status.leader else {
        return Cell::new("no replica leads", Tone::Bad);
    };
    let name = replica.as_deref().map_or_else(|| "(it has not reported its name yet)".to_owned(), printable);
    format!("{name} since {} ({} ago), fence {}", term.since, status.age(term.since), term.fence).into()
}

fn intake(intake: &IntakeStatus) -> Cell {
    let checkpoint = intake
        .checkpoint
        .map_or_else(|| "no checkpoint yet".to_owned(), |id| format!("read up to the entry {id}"));
    let behind = match (intake.backlog, intake.oldest) {
        (None, _) => "the stream could not be asked".to_owned(),
        (Some(backlog), _) if backlog.last_entry_id.is_none() => "the stream does not exist".to_owned(),
        (Some(_), None) => "nothing is unread".to_owned(),
        (Some(backlog), Some(oldest)) => {
            format!("{} unread, the first for {oldest}", backlog.entries)
        }
    };
    let waits = intake.waiting.as_ref().map_or_else(String::new, |waiting| format!("; {}", waits(waiting)));
    let tone = if intake.waiting.is_some() { Tone::Warning } else { Tone::Neutral };
    Cell::new(format!("{checkpoint}; {behind}{waits}"), tone)
}

fn waits(Waiting { entry_id, cause, age, .. }: &Waiting) -> String {
    let at = entry_id.map_or_else(String::new, |id| format!(" at the entry {id}"));
    format!("waits for {age}{at}: {}", printable(cause))
}

fn channels(style: Style, status: &Status) -> Vec<Vec<Cell>> {
    let row = |channel: &ChannelStatus| {
        let tone = if channel.failing.count > 0 { Tone::Warning } else { Tone::Neutral };
        [
            channel.channel.as_str().into(),
            channel.due.to_string().into(),
            channel.oldest_due.map_or_else(|| "-".to_owned(), |age| age.to_string()).into(),
            Cell::new(channel.failing.to_string(), tone),
            channel.waiting.as_ref().map_or_else(|| found(status, channel), waits).into(),
        ]
    };
    let columns = [
        Column::new("CHANNEL", 0),
        Column::new("DUE", 2),
        Column::new("OLDEST DUE", 4),
        Column::new("FAILING", 3),
        Column::new("WAITS FOR", 1).at_least(24),
    ];
    table(style, columns, status.store.channels.iter().map(row))
}

/// The state of a channel that does not wait.
fn found(status: &Status, channel: &ChannelStatus) -> String {
    let states = status.findings_of(channel.channel.as_str()).map(|finding| finding.state);
    states.max().map_or_else(|| "nothing".to_owned(), |state| format!("{}, see above", state.as_str()))
}

fn causes(causes: &CauseCounts) -> Vec<[Cell; 2]> {
    let row = |(cause, count): &(String, u64)| {
        let count = Counted { count: *count, capped: causes.capped };
        [printable(cause).into(), count.to_string().into()]
    };
    causes.counts.iter().map(row).collect()
}

fn replicas(style: Style, status: &Status) -> Vec<Vec<Cell>> {
    let row = |replica: &ReplicaStatus| {
        [
            printable(&replica.replica).into(),
            printable(&replica.version).into(),
            Cell::time(replica.started_at),
            seen(replica, status),
            listed(&replica.leader_of.iter().map(String::as_str).collect::<Vec<_>>()),
            listed(&replica.blocked()),
        ]
    };
    let columns = [
        Column::new("REPLICA", 0),
        Column::new("VERSION", 4),
        Column::new("STARTED", 5),
        Column::new("SEEN", 1),
        Column::new("LEADER OF", 2),
        Column::new("BLOCKED", 3),
    ];
    table(style, columns, status.store.replicas.iter().map(row))
}

/// The time of a replica's last report, with a note if the replica has stopped or counts as gone.
pub(in crate::commands) fn seen(replica: &ReplicaStatus, status: &Status) -> Cell {
    let (rest, tone) = match (replica.stopped_at, replica.is_running(status.store.at)) {
        (Some(_), _) => (" (stopped)", Tone::Neutral),
        (None, true) => ("", Tone::Neutral),
        (None, false) => (" (gone)", Tone::Warning),
    };
    Cell::new(format!("{} ago{rest}", status.age(replica.seen_at)), tone)
}

fn listed(names: &[&str]) -> Cell {
    if names.is_empty() { "-".into() } else { printable(&names.join(", ")).into() }
}

#[cfg(test)]
mod tests {
    use ambient::Timestamp;
    use domain::checkpoint::Checkpoint;
    use domain::document::Age;
    use domain::entry::EntryId;
    use domain::query::{LeaderTerm, RecentFailures, StoreStatus, StreamBacklog};
    use domain::replica::ReplicaReport;
    use domain::route::Channel;

    use super::*;
    use crate::commands::operators::print_rows;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
    }

    fn status(
        term: Option<LeaderTerm>,
        leaderless_since: Option<Timestamp>,
        backlog: Option<StreamBacklog>,
    ) -> Status {
        let channel = |channel| ChannelStatus {
            channel,
            due: Counted { count: 3, capped: false },
            oldest_due: Some(Age::between(at(90), at(100))),
            failing: Counted::default(),
            waiting: None,
        };
        let store = StoreStatus {
            at: at(100),
            stream: "intents".to_owned(),
            checkpoint: Some(Checkpoint { fence: 7, last_entry_id: EntryId::new(5, 0) }),
            channels: Channel::ALL.map(channel).into(),
            dead_letters: CauseCounts { counts: vec![("gateway\u{1b}[2J".to_owned(), 2)], capped: true },
            malformed_intents: CauseCounts::default(),
            recent: RecentFailures::default(),
            receipts: CauseCounts::default(),
            holds: Vec::new(),
            replicas: Vec::new(),
        };
        Status::new(store, term, leaderless_since, backlog)
    }

    fn printed(status: &Status) -> String {
        let mut out = Vec::new();
        print_status(&mut out, Style::PLAIN, status).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_status_is_shown_in_aligned_lines() {
        let term = Some(LeaderTerm { since: at(40), fence: 7 });
        let first = EntryId::new(1_775_121_795_000, 0);
        let entries = Counted { count: 2, capped: false };
        let backlog = StreamBacklog { last_entry_id: Some(first), first: Some(first), entries };
        let text = printed(&status(term, None, Some(backlog)));
        for line in [
            "intake  read up to the entry 5-0; 2 unread, the first for 5 s",
            "  CHANNEL  DUE  OLDEST DUE  FAILING  WAITS FOR",
            "  push     3    10 s        0        nothing",
            "  gateway\\u{1b}[2J  at least 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} in {text}");
        }
        assert!(text.contains("(1 min ago), fence 7\n"), "{text}");
    }

    #[test]
    fn a_replica_that_has_not_reported_itself_for_a_while_is_gone_unless_it_has_stopped() {
        for (last, stopped, expected) in [
            (95, false, "5 s ago\n"),
            (30, false, "1 min 10 s ago (gone)\n"),
            (95, true, "5 s ago (stopped)\n"),
        ] {
            let mut out = Vec::new();
            let report = ReplicaReport {
                replica: "notification-0".to_owned(),
                version: "0.1.0".to_owned(),
                started_at: at(0),
                leader_of: Vec::new(),
                workers: Vec::new(),
                stopped,
            };
            let replica = ReplicaStatus::new(report, at(last));
            print_rows(&mut out, Style::PLAIN, &[[seen(&replica, &status(None, None, None))]])
                .expect("memory takes it");
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }

    #[test]
    fn what_is_stuck_comes_first_and_what_is_not_known_is_said() {
        let text = printed(&status(None, Some(at(80)), None));
        let since = at(80);
        let expected = format!(
            "STUCK  No replica has led for 20 s, so no intent is read.\n  since {since}; see docs/operations.md#notificationnoleader\n"
        );
        assert!(text.starts_with(&expected), "{text}");
        assert!(
            text.contains("no replica leads") && text.contains("the stream could not be asked"),
            "{text}"
        );
    }
}
