//! The charts of the overview: intents, routes and delays of an hour or a day, of all routes or of some.

use std::collections::BTreeSet;

use ambient::Timestamp;
use domain::query::{ActivityHistory, ActivityPeriod, ActivityStep, ProducerActivity, RoutesStep};
use domain::route::Channel;
use maud::{Markup, html};

use super::super::parts::{choice_field, filter_buttons};
use crate::chart::{Chart, Line, Unit};
use crate::error::PageError;
use crate::params::Params;
use crate::widgets::{column, failed, number, numbers, table, visible};

/// The parameters of the charts.
pub(super) const PARAMS: [&str; 3] = ["period", "channel", "type"];
/// The address of the overview.
const PATH: &str = "/console/";
/// The most producers that are listed.
const MAX_PRODUCERS: usize = 10;

/// The selection of the charts.
#[derive(Clone, Debug, Default)]
pub(super) struct Selected {
    pub(super) period: ActivityPeriod,
    channel: Option<Channel>,
    notification_type: Option<String>,
    params: Params,
}

impl Selected {
    pub(super) fn parse(query: Option<&str>) -> Result<Self, PageError> {
        let params = Params::parse(query, &PARAMS)?;
        Ok(Self {
            period: params.value("period", "hour or day")?.unwrap_or_default(),
            channel: params.value("channel", "push or email")?,
            notification_type: params.text("type").map(str::to_owned),
            params,
        })
    }

    /// The selected routes in words.
    fn routes(&self) -> String {
        match (self.channel, &self.notification_type) {
            (None, None) => "Routes".to_owned(),
            (Some(channel), None) => format!("Routes of {}", channel.as_str()),
            (None, Some(of_type)) => format!("Routes of {of_type}"),
            (Some(channel), Some(of_type)) => format!("Routes of {of_type} by {}", channel.as_str()),
        }
    }

    fn is_all(&self) -> bool {
        self.channel.is_none() && self.notification_type.is_none()
    }
}

/// The charts and the choices of what they show.
pub(super) fn charts(activity: Option<&ActivityHistory>, selected: &Selected) -> Markup {
    let Some(activity) = activity else {
        return failed("The activity could not be read.", "The rest of the page is up to date.");
    };
    let steps: Vec<Timestamp> = activity.steps.iter().map(|step| step.at).collect();
    let (of_step, period) = match selected.period {
        ActivityPeriod::Hour => ("a minute", "the last hour"),
        ActivityPeriod::Day => ("in 15 minutes", "the last 24 hours"),
    };
    let routes = activity.routes_of(|of| {
        selected.channel.is_none_or(|channel| channel == of.channel)
            && selected.notification_type.as_ref().is_none_or(|wanted| *wanted == of.notification_type)
    });
    let chart =
        |id, title: String, unit, lines| Chart { id, title, period, unit, steps: steps.clone(), lines };
    let what = selected.routes();
    let charts = [
        chart("intents-chart", format!("Intents {of_step}"), Unit::Count, intents(activity)),
        chart(
            "routes-chart",
            format!("{what} {of_step}"),
            Unit::Count,
            lines_of(activity, &routes, selected),
        ),
        chart(
            "delays-chart",
            format!("{what}: delay until publication"),
            Unit::Milliseconds,
            delays(&routes),
        ),
    ];
    html! {
        div.grid {
            @for chart in &charts { div.card { (chart.render()) } }
        }
        (producers(&activity.producers, period))
    }
}

fn intents(activity: &ActivityHistory) -> Vec<Line> {
    let line = |label, count: fn(&ActivityStep) -> u64| Line {
        label,
        values: activity.steps.iter().map(|step| Some(count(step))).collect(),
    };
    vec![
        line("accepted", |of| of.activity.accepted),
        line("duplicates", |of| of.activity.duplicates),
        line("malformed or conflicting", |of| of.activity.malformed + of.activity.conflicts),
    ]
}

/// The lines of the selected routes. Of all routes the counts of the replicas are shown, which former
/// releases have written, too.
fn lines_of(activity: &ActivityHistory, routes: &[RoutesStep], selected: &Selected) -> Vec<Line> {
    let counts: Vec<[u64; 3]> = match selected.is_all() {
        true => {
            let counts = activity.steps.iter().map(|step| step.activity);
            counts.map(|of| [of.published, of.failed, of.dead_lettered]).collect()
        }
        false => routes.iter().map(|of| [of.published, of.failed, of.dead_lettered]).collect(),
    };
    let line =
        |label, at: usize| Line { label, values: counts.iter().map(|counts| Some(counts[at])).collect() };
    vec![line("published", 0), line("failed attempts", 1), line("dead letters", 2)]
}

fn delays(routes: &[RoutesStep]) -> Vec<Line> {
    let line = |label, delay: fn(&RoutesStep) -> Option<u64>| Line {
        label,
        values: routes.iter().map(delay).collect(),
    };
    vec![line("p50", |of| of.delay_p50_ms), line("p99", |of| of.delay_p99_ms)]
}

/// The form that chooses the period and the routes, folded while nothing is chosen.
pub(super) fn choices(activity: Option<&ActivityHistory>, selected: &Selected) -> Markup {
    let routes = activity.map(|activity| activity.routes.as_slice()).unwrap_or_default();
    let mut types: BTreeSet<&str> = routes.iter().map(|of| of.notification_type.as_str()).collect();
    types.extend(selected.notification_type.as_deref());
    let channels = choices_of(Channel::ALL.map(Channel::as_str));
    let types = choices_of(types);
    html! {
        form method="get" action=(PATH) aria-label="What the charts show" {
            details open[selected.params.is_filtered()] {
                summary { "Charts: choose period, channel and type" }
                div.fields {
                    (choice_field(&selected.params, "period", "Period", &[("", "Last hour"), ("day", "24 hours")]))
                    (choice_field(&selected.params, "channel", "Channel", &channels))
                    (choice_field(&selected.params, "type", "Type", &types))
                    (filter_buttons(PATH))
                }
            }
        }
    }
}

/// All, or one of these names.
fn choices_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, &'a str)> {
    [("", "All")].into_iter().chain(names.into_iter().map(|name| (name, name))).collect()
}

/// The producers with malformed intents, those with most first.
fn producers(producers: &[ProducerActivity], period: &str) -> Markup {
    let mut wrong: Vec<&ProducerActivity> = producers.iter().filter(|of| of.malformed > 0).collect();
    wrong.sort_by_key(|of| std::cmp::Reverse(of.malformed));
    let row = |of: &&ProducerActivity| {
        let name = if of.producer.is_empty() {
            html! { "others" }
        } else {
            visible(&of.producer)
        };
        vec![name, html! { (number(of.malformed)) }, html! { (number(of.accepted + of.duplicates)) }]
    };
    let rows: Vec<Vec<Markup>> = wrong.iter().take(MAX_PRODUCERS).map(row).collect();
    html! {
        @if !rows.is_empty() {
            div.card {
                details #producers {
                    summary { "Malformed intents by producer in " (period) }
                    (table("Malformed intents by producer", &[column("Producer"), numbers("Malformed"), numbers("Accepted")], &rows))
                }
            }
        }
    }
}
