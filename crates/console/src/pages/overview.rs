//! The overview: stuck parts and their causes, traffic, backlogs, leader, dead letters by cause, replicas.

mod charts;
mod findings;

use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use domain::document::Age;
use domain::personal::{Document, Sight};
use domain::ports::{ActivityQueries, LeaderLookup, Queries, StoreError, StreamQueries};
use domain::query::{
    ActivityHistory, CauseCounts, ChannelStatus, IntakeStatus, LeaderTerm, Leaderless, ReplicaStatus, Status,
    StoreStatus, StreamBacklog, Waiting,
};
use futures_util::future::join3;
use maud::{Markup, html};

use self::charts::Selected;
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::operator::Visitor;
use crate::params::address;
use crate::ports::{Console, Ports};
use crate::widgets::{Tone, badge, callout, column, id, number, numbers, table, time, visible};

/// The route of this page.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route("/console/", get(show::<P>))
}

/// The content of the page.
struct Overview {
    status: Status,
    /// The recent activity; `None` if it could not be read.
    activity: Option<ActivityHistory>,
    selected: Selected,
}

async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let selected = Selected::parse(query.as_deref())?;
    let overview = read(&console, selected, visitor.sight).await?;
    let page = Page::new(Section::Overview, "Overview", render(&overview));
    Ok(page.live().with_state(overview.status.state))
}

async fn read<P: Ports>(
    console: &Console<P>,
    selected: Selected,
    sight: Sight,
) -> Result<Overview, StoreError> {
    let (store, term, activity) = join3(
        console.queries.status(&console.settings.stream, console.clock.now()),
        console.leader.leader(),
        console.activity.activity(selected.period),
    )
    .await;
    let (store, term) = (store?.seen_by(sight), term?);
    // If Redis is unavailable, the rest is still shown.
    let backlog = console.stream.backlog(store.processed_up_to()).await.ok();
    let last_term_end = match term {
        Some(_) => None,
        None => console.leader.last_term_end().await?,
    };
    let status = status(store, term, last_term_end, backlog, &console.leaderless);
    Ok(Overview { status, activity: activity.ok().seen_by(sight), selected })
}

/// Assembles the status. Without a leader, the time counts from the end of the last term if that is known,
/// else from the first of the overviews in a row that had no leader.
fn status(
    store: StoreStatus,
    term: Option<LeaderTerm>,
    last_term_end: Option<Timestamp>,
    backlog: Option<StreamBacklog>,
    leaderless: &Leaderless,
) -> Status {
    let seen_since = leaderless.look(term.is_some(), store.at);
    Status::new(store, term, last_term_end.or(seen_since), backlog)
}

fn render(overview: &Overview) -> Markup {
    let status = &overview.status;
    html! {
        section #findings data-live aria-label="What is stuck or fails" { (findings::show(status)) }
        section #choices aria-label="Choice of the charts" { (charts::choices(overview.activity.as_ref(), &overview.selected)) }
        section #traffic data-live aria-label="Traffic" { (charts::charts(overview.activity.as_ref(), &overview.selected)) }
        section #backlog.grid.four data-live aria-label="Leader and backlogs" {
            (leader(status))
            (intake(&status.intake))
            @for channel in &status.store.channels { (channel_card(channel, status)) }
        }
        section #causes.grid data-live aria-label="What failed in the last 24 hours" {
            (causes("Dead letters by cause", "/console/dead-letters", "classification", &status.store.dead_letters,
                "No dead letter of the last 24 hours needs attention."))
            (causes("Malformed intents by code", "/console/malformed", "code", &status.store.malformed_intents,
                "No malformed intent came in the last 24 hours."))
            (causes("Bounced and complained", "/console/notifications", "receipt", &status.store.receipts,
                "No receipt of the last 24 hours reports a bounce or a complaint."))
        }
        section #replicas data-live aria-label="Replicas" { (replicas(status)) }
        p.hint { "Version " (status.version) ". All times are in UTC." }
    }
}

fn leader(status: &Status) -> Markup {
    html! {
        div.card {
            h2 { "Leader" }
            @match &status.leader {
                Some(leader) => {
                    p.figure.name { (visible(leader.replica.as_deref().unwrap_or("not reported yet"))) }
                    dl {
                        div { dt { "Since" } dd { (time(leader.term.since)) } }
                        div { dt { "For" } dd { (status.age(leader.term.since)) } }
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

fn intake(intake: &IntakeStatus) -> Markup {
    html! {
        div.card {
            h2 { "Intake" }
            @match &intake.backlog {
                Some(backlog) => p.figure { (format!("{:#}", backlog.entries)) " " small { "not read yet" } },
                None => p { (badge(Tone::Warning, "the stream cannot be read")) },
            }
            dl {
                div { dt { "Oldest" } dd { (oldest(intake.oldest)) } }
                div { dt { "Checkpoint" } dd { @match intake.checkpoint { Some(at) => code { (at) }, None => "none yet" } } }
                div { dt { "Stream" } dd { code { (visible(&intake.stream)) } } }
            }
            (waiting(intake.waiting.as_ref()))
        }
    }
}

fn channel_card(channel: &ChannelStatus, status: &Status) -> Markup {
    let state = status.findings_of(channel.channel.as_str()).map(|finding| finding.state).max();
    html! {
        div.card {
            h2 { "Channel " (channel.channel.as_str()) @if let Some(state) = state { " " (badge(state.tone(), state.as_str())) } }
            p.figure { (format!("{:#}", channel.due)) " " small { "due" } }
            dl {
                div { dt { "Oldest" } dd { (oldest(channel.oldest_due)) } }
                div { dt { "Failing" } dd { (format!("{:#}", channel.failing)) } }
            }
            (waiting(channel.waiting.as_ref()))
        }
    }
}

fn oldest(oldest: Option<Age>) -> Markup {
    html! {
        @match oldest {
            Some(oldest) => { (oldest) " old" },
            None => span.soft { "none" },
        }
    }
}

fn waiting(waiting: Option<&Waiting>) -> Markup {
    html! {
        @if let Some(waiting) = waiting {
            (callout(Tone::Warning, &html! {
                p {
                    "Waits for " (waiting.age)
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

fn replicas(status: &Status) -> Markup {
    let columns = [column("Replica"), column("State"), column("Leads"), column("Version"), column("Started")];
    let rows: Vec<Vec<Markup>> =
        status.store.replicas.iter().map(|replica| replica_row(replica, status)).collect();
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

fn replica_row(replica: &ReplicaStatus, status: &Status) -> Vec<Markup> {
    let blocked = replica.blocked();
    let state = if let Some(stopped_at) = replica.stopped_at {
        badge(Tone::Neutral, &format!("stopped {} ago", status.age(stopped_at)))
    } else if !replica.is_running(status.store.at) {
        badge(Tone::Neutral, &format!("not seen for {}", status.age(replica.seen_at)))
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
