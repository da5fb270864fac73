//! Resubmission of malformed intents: their selection, and its record.

use domain::accept::Known;
use domain::malformed_intent::MalformedKey;
use domain::ports::{AcceptanceStore, Queries, ResubmitStore};
use domain::query::MalformedFilter;
use domain::resubmit::{Refusal, ResubmitActor, ResubmitSelection, ResubmitTarget};

use super::accepted::{STREAM, at, broken, commit, decide};

/// A store under test.
pub trait ResubmitFixture {
    /// The store; acceptance creates its rows.
    fn store(&self) -> &(impl AcceptanceStore + ResubmitStore);

    /// The queries on the rows.
    fn queries(&self) -> &impl Queries;

    /// The names of the recorded actions, with the number of affected rows.
    fn actions(&self) -> impl Future<Output = Vec<(String, u64)>>;
}

/// Runs every case of [`crate::contract::resubmit`], each on a fixture of its own.
#[macro_export]
macro_rules! resubmit_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            resubmit, $fixture;
            what_a_filter_selects_was_not_resubmitted_and_each_condition_holds,
            a_row_is_marked_once_with_its_action_and_shows_the_new_entry,
            an_entry_of_a_stream_that_the_service_does_not_read_is_refused,
        );
    };
}

const ACTOR: ResubmitActor<'static> =
    ResubmitActor { name: "ada", request_id: "r-1", idempotency_key: Some("k"), reason: Some("imported") };

async fn with_malformed(fixture: &impl ResubmitFixture, count: u64) {
    for number in 1..=count {
        let outcomes = decide([broken(number)], &Known::default(), at(number as i64));
        let _ = commit(fixture.store(), &outcomes, None).await;
    }
}

async fn select(fixture: &impl ResubmitFixture, selection: &ResubmitSelection) -> Vec<ResubmitTarget> {
    let selected = fixture.store().select_malformed_intents(STREAM, selection).await;
    selected.expect("the store is there").targets
}

fn filter() -> MalformedFilter {
    MalformedFilter::default()
}

fn ids(targets: &[ResubmitTarget]) -> Vec<&str> {
    targets.iter().map(|target| target.key.entry_id.as_str()).collect()
}

async fn mark(fixture: &impl ResubmitFixture, chunk: &[(MalformedKey, String)]) -> u64 {
    let selection = ResubmitSelection::Filter(filter());
    fixture.store().mark_resubmitted(chunk, &selection, ACTOR).await.expect("the store is there")
}

/// A filter selects by code, producer and time what was not resubmitted.
pub async fn what_a_filter_selects_was_not_resubmitted_and_each_condition_holds(
    fixture: impl ResubmitFixture,
) {
    with_malformed(&fixture, 3).await;
    let text = |text: &str| Some(text.to_owned());
    for (filter, expected) in [
        (filter(), ["3-0", "2-0", "1-0"].as_slice()),
        (MalformedFilter { code: text("unknown_field"), ..filter() }, &["3-0", "2-0", "1-0"]),
        (MalformedFilter { code: text("missing_field"), ..filter() }, &[]),
        (MalformedFilter { producer: text("game_master"), ..filter() }, &[]),
        (MalformedFilter { idempotency_key: text("k"), ..filter() }, &[]),
        (MalformedFilter { recorded_after: Some(at(2)), recorded_before: Some(at(3)), ..filter() }, &["2-0"]),
    ] {
        let found = select(&fixture, &ResubmitSelection::Filter(filter.clone())).await;
        assert_eq!(ids(&found), expected, "{filter:?}");
        assert!(found.iter().all(|target| target.is_whole && !target.is_resubmitted));
    }
    let named = ResubmitSelection::Ids(vec!["2-0".to_owned(), "9-0".to_owned()]);
    let found = fixture.store().select_malformed_intents(STREAM, &named).await.expect("the store is there");
    assert_eq!((ids(&found.targets), found.unknown), (vec!["2-0"], vec!["9-0".to_owned()]));
}

/// A row that is marked has no fields to resubmit, and is marked once.
pub async fn a_row_is_marked_once_with_its_action_and_shows_the_new_entry(fixture: impl ResubmitFixture) {
    with_malformed(&fixture, 3).await;
    let all = select(&fixture, &ResubmitSelection::Filter(filter())).await;
    let chunk: Vec<(MalformedKey, String)> =
        all[1..].iter().map(|target| (target.key.clone(), format!("9{}", target.key.entry_id))).collect();
    for (key, _) in &chunk {
        let fields = fixture.store().get_fields_to_resubmit(key).await.expect("the store is there");
        assert_eq!(fields.as_deref(), Some(r#"[["unknown", "x"]]"#));
    }
    assert_eq!(mark(&fixture, &chunk).await, 2);
    assert_eq!(mark(&fixture, &chunk).await, 0, "they are marked already");
    let actions = fixture.actions().await;
    assert!(actions.iter().all(|(name, _)| name == "resubmit_malformed_intents"), "{actions:?}");
    // The entries of the second call are in the stream, so it is recorded, too.
    let mut affected: Vec<u64> = actions.iter().map(|(_, affected)| *affected).collect();
    affected.sort_unstable();
    assert_eq!(affected, [0, 2]);
    assert_eq!(ids(&select(&fixture, &ResubmitSelection::Filter(filter())).await), ["3-0"]);
    let named = select(&fixture, &ResubmitSelection::Ids(vec!["2-0".to_owned()])).await;
    assert!(named[0].is_resubmitted);
    let fields = fixture.store().get_fields_to_resubmit(&chunk[0].0).await.expect("the store is there");
    assert_eq!(fields, None);
    let shown = fixture.queries().get_malformed_intents(STREAM, "2-0").await.expect("the store is there");
    assert_eq!(shown[0].summary.resubmitted_entry_id.as_deref(), Some("92-0"));
    assert!(shown[0].summary.resubmitted_at.is_some() && shown[0].resubmitted_from.is_none());
}

/// The rows of a stream that the service no longer reads are selected by a filter, and refused.
pub async fn an_entry_of_a_stream_that_the_service_does_not_read_is_refused(fixture: impl ResubmitFixture) {
    with_malformed(&fixture, 1).await;
    let all = ResubmitSelection::Filter(filter());
    let selected = fixture.store().select_malformed_intents("another", &all).await;
    let selected = selected.expect("the store is there");
    assert_eq!(selected.targets[0].refusal(), Some(Refusal::OtherStream));
    let named = ResubmitSelection::Ids(vec!["1-0".to_owned()]);
    let selected = fixture.store().select_malformed_intents("another", &named).await;
    let selected = selected.expect("the store is there");
    assert_eq!((selected.targets.len(), selected.unknown), (0, vec!["1-0".to_owned()]));
}
