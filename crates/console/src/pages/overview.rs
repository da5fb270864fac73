//! The overview: stuck parts and their causes, traffic, backlogs, leader, dead letters by cause, replicas.

mod findings;

use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use domain::ports::{Activity, ActivityQueries, LeaderLookup, Queries, StoreError, StreamQueries};
use domain::query::{
    ActivityHistory, CauseCounts, ChannelStatus, Leader, MinuteActivity, ReplicaStatus, Status, Stuck,
    Waiting, stuck,
};
use futures_util::future::join3;
use maud::{Markup, html};

use crate::chart::{Chart, Line};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::leaderless::Leaderless;
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{
    Tone, badge, callout, column, counted, failed, id, number, numbers, span, table, time, visible,
};

/// The route of this page.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route("/console/", get(show::<P>))
}

/// The content of the page.
struct Overview {
    status: Status,
    stuck: Vec<Stuck>,
    /// The activity of the last hour; `None` if it could not be read.
    activity: Option<ActivityHistory>,
    stream: String,
    version: &'static str,
}

async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    Params::parse(query.as_deref(), &[])?;
    let overview = read(&console).await?;
    Ok(Page::new(Section::Overview, "Overview", render(&overview)).live())
}

async fn read<P: Ports>(console: &Console<P>) -> Result<Overview, StoreError> {
    let settings = &console.settings;
    let (store, term, activity) = join3(
        console.queries.status(&settings.stream, console.clock.now()),
        console.leader.leader(),
        console.activity.activity(),
    )
    .await;
    let (store, term) = (store?, term?);
    // If Redis is unavailable, the rest is still shown.
    let backlog = console.stream.backlog(store.processed_up_to()).await.ok();
    let last_term_end = match term {
        Some(_) => None,
        None => console.leader.last_term_end().await?,
    };
    let status = Status::new(store, term, backlog);
    let stuck = find_stuck(&status, last_term_end, &console.leaderless);
    let (stream, version) = (settings.stream.clone(), settings.version);
    Ok(Overview { stuck, status, activity: activity.ok(), stream, version })
}

/// Returns what is stuck. Without a leader, the time counts from the end of the last term if that is known,
/// else from the first of the overviews in a row that had no leader.
fn find_stuck(status: &Status, last_term_end: Option<Timestamp>, leaderless: &Leaderless) -> Vec<Stuck> {
    let seen_since = leaderless.look(status.leader.is_some(), status.store.at);
    stuck(status, last_term_end.or(seen_since))
}

fn render(overview: &Overview) -> Markup {
    let (status, now) = (&overview.status, overview.status.store.at);
    html! {
        section #stuck data-live aria-label="What is stuck" { (findings::show(overview, now)) }
        section #traffic.grid.two data-live aria-label="Traffic of the last hour" { (charts(overview.activity.as_ref())) }
        section #backlog.grid.four data-live aria-label="Leader and backlogs" {
            (leader(status.leader.as_ref(), now))
            (intake(status, &overview.stream, now))
            @for channel in &status.store.channels {
                @let waiting = status.publishers.iter().find(|(found, _)| *found == channel.channel);
                (channel_card(channel, waiting.and_then(|(_, waiting)| waiting.as_ref()), now))
            }
        }
        section #causes.grid.two data-live aria-label="What failed in the last 24 hours" {
            (causes("Dead letters by cause", "/console/dead-letters", "classification", &status.store.dead_letters,
                "No dead letter of the last 24 hours needs attention."))
            (causes("Malformed intents by code", "/console/malformed", "code", &status.store.malformed_intents,
                "No malformed intent came in the last 24 hours."))
        }
        section #replicas data-live aria-label="Replicas" { (replicas(&status.store.replicas, now)) }
        p.hint { "Version " (overview.version) ". All times are in UTC." }
    }
}

fn charts(activity: Option<&ActivityHistory>) -> Markup {
    let Some(activity) = activity else {
        return failed(
            "The activity of the last hour could not be read.",
            "The rest of the page is up to date.",
        );
    };
    let series = activity.series();
    let minutes: Vec<Timestamp> = series.iter().map(|minute| minute.minute).collect();
    let line = |label, count: fn(&Activity) -> u64| {
        let count = |minute: &MinuteActivity| count(&minute.activity);
        Line { label, counts: series.iter().map(count).collect() }
    };
    let intents = vec![
        line("accepted", |of| of.accepted),
        line("duplicates", |of| of.duplicates),
        line("malformed or conflicting", |of| of.malformed + of.conflicts),
    ];
    let routes = vec![
        line("published", |of| of.published),
        line("failed attempts", |of| of.failed),
        line("dead letters", |of| of.dead_lettered),
    ];
    html! {
        div.card { (Chart { id: "intents-chart", title: "Intents a minute", minutes: minutes.clone(), lines: intents }.render()) }
        div.card { (Chart { id: "routes-chart", title: "Routes a minute", minutes, lines: routes }.render()) }
    }
}

fn leader(leader: Option<&Leader>, now: Timestamp) -> Markup {
    html! {
        div.card {
            h2 { "Leader" }
            @match leader {
                Some(leader) => {
                    p.figure.name { (visible(leader.replica.as_deref().unwrap_or("not reported yet"))) }
                    dl {
                        div { dt { "Since" } dd { (time(leader.term.since)) } }
                        div { dt { "For" } dd { (span(now.saturating_since(leader.term.since))) } }
                        div { dt { "Fence" } dd { (leader.term.fence) } }
                    }
                }
                None => {
                    p { (badge(Tone::Bad, "no leader")) }
                    p { "No replica reads the intents stream at the moment. After a crash another one leads within 12 s." }
                }
            }
        }
    }
}

fn intake(status: &Status, stream: &str, now: Timestamp) -> Markup {
    let intake = &status.intake;
    html! {
        div.card {
            h2 { "Intake" }
            @match &intake.backlog {
                Some(backlog) => p.figure { (counted(backlog.entries)) " " small { "not read yet" } },
                None => p { (badge(Tone::Warning, "Redis cannot be asked")) },
            }
            dl {
                div { dt { "Oldest" } dd { (age(intake.oldest, now)) } }
                div { dt { "Checkpoint" } dd { @match intake.checkpoint { Some(at) => code { (at) }, None => "none yet" } } }
                div { dt { "Stream" } dd { code { (visible(stream)) } } }
            }
            (waiting(intake.waiting.as_ref(), now))
        }
    }
}

fn channel_card(channel: &ChannelStatus, waits: Option<&Waiting>, now: Timestamp) -> Markup {
    html! {
        div.card {
            h2 { "Channel " (channel.channel.as_str()) }
            p.figure { (counted(channel.due)) " " small { "due" } }
            dl {
                div { dt { "Oldest" } dd { (age(channel.oldest_due, now)) } }
                div { dt { "Failing" } dd { (counted(channel.failing)) } }
            }
            (waiting(waits, now))
        }
    }
}

/// The time since something began, if it did.
fn age(since: Option<Timestamp>, now: Timestamp) -> Markup {
    html! {
        @match since {
            Some(since) => { (span(now.saturating_since(since))) " old" },
            None => span.soft { "none" },
        }
    }
}

fn waiting(waiting: Option<&Waiting>, now: Timestamp) -> Markup {
    html! {
        @if let Some(waiting) = waiting {
            (callout(Tone::Warning, &html! {
                p {
                    "Waits for " (span(now.saturating_since(waiting.since)))
                    @if let Some(entry) = waiting.entry_id { " at the entry " (id(&entry.to_string())) }
                }
                p { (visible(&waiting.cause)) }
            }))
        }
    }
}

/// The number of occurrences of each cause, with a link to the list filtered by it.
fn causes(title: &str, path: &str, parameter: &str, causes: &CauseCounts, none: &str) -> Markup {
    let row = |(cause, count): &(String, u64)| {
        let link = address(path, [(parameter, cause.as_str())]);
        vec![html! { a href=(link) { (visible(cause)) } }, html! { (number(*count)) }]
    };
    let rows: Vec<Vec<Markup>> = causes.counts.iter().map(row).collect();
    html! {
        div.card {
            h2 { (title) }
            @if rows.is_empty() {
                p { (badge(Tone::Good, "none")) " " (none) }
            } @else {
                (table("In the last 24 hours", &[column("Cause"), numbers("Count")], &rows))
                @if causes.capped { p.hint { "Only the newest are counted; there may be more." } }
            }
        }
    }
}

fn replicas(replicas: &[ReplicaStatus], now: Timestamp) -> Markup {
    let columns = [column("Replica"), column("State"), column("Leads"), column("Version"), column("Started")];
    let rows: Vec<Vec<Markup>> = replicas.iter().map(|replica| replica_row(replica, now)).collect();
    html! {
        div.card {
            h2 { "Replicas" }
            @if rows.is_empty() {
                p.soft { "No replica has reported itself in the last hour." }
            } @else {
                (table("Replicas of the last hour", &columns, &rows))
            }
        }
    }
}

fn replica_row(replica: &ReplicaStatus, now: Timestamp) -> Vec<Markup> {
    let blocked = replica.blocked();
    let state = if !replica.is_running(now) {
        badge(Tone::Neutral, &format!("not seen for {}", span(now.saturating_since(replica.seen_at))))
    } else if blocked.is_empty() {
        badge(Tone::Good, "running")
    } else {
        badge(Tone::Warning, &format!("blocked: {}", blocked.join(", ")))
    };
    let leads = replica.leader_of.join(", ");
    vec![
        visible(&replica.replica),
        state,
        html! { @if leads.is_empty() { span.soft { "nothing" } } @else { (visible(&leads)) } },
        visible(&replica.version),
        time(replica.started_at),
    ]
}

#[cfg(test)]
mod tests;
