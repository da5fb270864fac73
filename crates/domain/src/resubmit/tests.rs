//! Plans, actions and outcomes of resubmissions.

use super::*;
use crate::catalog::Catalog;
use crate::entry::EntryId;
use crate::explanation::intent::tests::{fields, record, row};
use crate::malformed_intent::KeptFields;
use crate::query::StoredMalformedIntent;
use crate::record::Record;

fn target(id: &str, code: FailureCode) -> ResubmitTarget {
    let key = MalformedKey {
        stream: "intents".to_owned(),
        entry_id: id.to_owned(),
        fields_fingerprint: String::new(),
    };
    ResubmitTarget {
        key,
        failure_code: code.as_str().to_owned(),
        producer: "p".to_owned(),
        is_whole: true,
        is_resubmitted: false,
        is_of_stream: true,
    }
}

#[test]
fn conflicts_cut_entries_those_of_another_stream_and_those_resubmitted_before_are_refused_and_counted() {
    let cut = ResubmitTarget { is_whole: false, ..target("3-0", FailureCode::EntryTooLarge) };
    let before = ResubmitTarget { is_resubmitted: true, ..target("4-0", FailureCode::RecipientNotFound) };
    let other = ResubmitTarget { is_of_stream: false, ..target("7-0", FailureCode::UnknownField) };
    let targets = ResubmitTargets {
        targets: vec![
            other,
            target("1-0", FailureCode::RecipientNotFound),
            target("2-0", FailureCode::IdempotencyConflict),
            cut,
            before,
            target("5-0", FailureCode::UnknownField),
            target("6-0", FailureCode::RecipientNotFound),
        ],
        unknown: vec!["9-0".to_owned()],
        continue_before: None,
    };
    let plan = targets.plan();
    assert_eq!((plan.count.count, plan.count.capped, plan.refused), (3, false, 4));
    assert_eq!(plan.first, ["1-0", "5-0", "6-0"]);
    let by: Vec<_> = plan.by.iter().map(|group| (group.code.as_str(), group.count)).collect();
    assert_eq!(by, [("recipient_not_found", 2), ("unknown_field", 1)]);
    let reasons = plan.first_refused.iter().map(|one| (one.stream_entry_id.as_str(), one.reason.as_str()));
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [
            ("7-0", "other_stream"),
            ("2-0", "idempotency_conflict"),
            ("3-0", "fields_not_kept"),
            ("4-0", "resubmitted_before"),
        ]
    );
    assert_eq!(plan.unknown, ["9-0"]);
}

#[test]
fn the_outcome_of_a_new_entry_is_that_of_the_row_or_the_record_that_it_left() {
    let catalog = Catalog::built_in();
    let entry = fields("k", 1);
    let stored = |id: u64, code| StoredMalformedIntent {
        summary: row(EntryId::new(id, 0), &entry, code),
        raw_fields: Some(KeptFields::of(entry.clone()).text().into_owned()),
        resubmitted_from: None,
        resubmitted_outcome: None,
        conflict: None,
    };
    let mut old = stored(1, FailureCode::RecipientNotFound);
    let outcome = |old: &StoredMalformedIntent, again: &[StoredMalformedIntent], holder: Option<&Record>| {
        let outcome = ResubmittedOutcome::of(old, again, holder, &catalog)?;
        Some((outcome.outcome, outcome.text()))
    };
    assert_eq!(outcome(&old, &[], None), None);
    old.summary.resubmitted_entry_id = Some("7-0".to_owned());
    let (new, other) = (record("7-0", &entry), record("5-0", &entry));
    let (conflict, again) = (record("5-0", &fields("k", 2)), stored(7, FailureCode::UnknownField));
    for (again, holder, name, text) in [
        (None, None, "unknown", "not read yet, or deleted since"),
        (None, Some(&new), "accepted", "accepted: it is the notification 7-0"),
        (None, Some(&other), "duplicate", "a duplicate of the notification 5-0"),
        (None, Some(&conflict), "unknown", "not read yet, or deleted since"),
        (Some(again), None, "malformed", "malformed again: unknown_field"),
    ] {
        let again: Vec<_> = again.into_iter().collect();
        assert_eq!(outcome(&old, &again, holder), Some((name, text.to_owned())));
    }
}

#[test]
fn the_arguments_of_an_action_name_the_filter_or_the_ids_of_the_chunk() {
    let chunk = [(target("1-0", FailureCode::UnknownField).key, "7-0".to_owned())];
    let filter = MalformedFilter { code: Some("unknown_field".to_owned()), ..MalformedFilter::default() };
    let actor =
        ResubmitActor { name: "ada", request_id: "r", idempotency_key: Some("k"), reason: Some("imported") };
    assert_eq!(
        arguments(&ResubmitSelection::Filter(filter), &chunk, actor),
        json!({"filter": {"code": "unknown_field"}, "idempotency_key": "k", "reason": "imported"})
    );
    let actor = ResubmitActor { idempotency_key: None, reason: None, ..actor };
    assert_eq!(arguments(&ResubmitSelection::Ids(vec![]), &chunk, actor), json!({"ids": ["1-0"]}));
}
