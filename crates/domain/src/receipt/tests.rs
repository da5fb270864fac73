use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn report(status: ReceiptStatus, second: i64) -> Report {
    let at = Timestamp::from_millis(1_775_121_700_000 + second * 1_000).expect("in range");
    Report { status, at, detail: format!("report {second}") }
}

/// The receipt after reports of these statuses, and the effect of each report.
fn after_all(statuses: impl IntoIterator<Item = ReceiptStatus>) -> (Option<Receipt>, Vec<Recorded>) {
    let (mut known, mut outcomes) = (None, Vec::new());
    for (second, status) in (0..).zip(statuses) {
        let (receipt, outcome) = Receipt::after(known, report(status, second));
        known = Some(receipt);
        outcomes.push(outcome);
    }
    (known, outcomes)
}

fn statuses() -> impl Strategy<Value = Vec<ReceiptStatus>> {
    prop::collection::vec(prop::sample::select(ReceiptStatus::ALL.to_vec()), 1..120)
}

#[test]
fn the_order_is_failed_delivered_opened_complained_bounced() {
    assert!(ReceiptStatus::ALL.is_sorted());
    let names = ReceiptStatus::ALL.map(ReceiptStatus::as_str);
    assert_eq!(names, ["failed", "delivered", "opened", "complained", "bounced"]);
    assert!(ReceiptStatus::ALL.iter().all(|status| status.as_str().parse() == Ok(*status)));
    assert_eq!("Failed".parse::<ReceiptStatus>(), Err(UnknownName));
}

#[test]
fn a_report_is_recorded_if_it_is_higher_than_what_is_known_and_stale_otherwise() {
    for known in ReceiptStatus::ALL {
        for status in ReceiptStatus::ALL {
            let (receipt, outcomes) = after_all([known, status]);
            let receipt = receipt.expect("there are reports");
            let is_higher = status > known;
            let expected = if is_higher { Recorded::Recorded } else { Recorded::Stale };
            assert_eq!(outcomes, [Recorded::Recorded, expected], "{status:?} after {known:?}");
            let highest = if is_higher { report(status, 1) } else { report(known, 0) };
            assert_eq!(receipt.highest, highest);
        }
    }
}

#[test]
fn the_document_has_the_members_of_the_contract() {
    let (receipt, _) = after_all([ReceiptStatus::Opened, ReceiptStatus::Delivered]);
    let document: Value =
        serde_json::from_str(&receipt.expect("there are reports").to_json()).expect("it is JSON");
    let opened = json!({"status": "opened", "at": "2026-04-02T09:21:40.000000Z", "detail": "report 0"});
    let with = |report: &Value, name: &str, value: Value| {
        let mut with = report.clone();
        with[name] = value;
        with
    };
    let stale = json!({
        "status": "delivered", "at": "2026-04-02T09:21:41.000000Z", "detail": "report 1", "outcome": "stale"
    });
    let history = json!([stale, with(&opened, "outcome", "recorded".into())]);
    assert_eq!(document, with(&opened, "history", history));
}

#[test]
fn a_document_of_another_program_is_an_error_and_never_a_receipt() {
    for text in
        ["", "null", "{}", r#"{"status":"read","at":"2026-04-02T09:21:40Z","detail":"","history":[]}"#]
    {
        assert!(Receipt::from_json(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn the_status_is_the_highest_of_all_reports_whatever_their_order(
        (drawn, shuffled) in statuses().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle()))
    ) {
        let highest = drawn.iter().max().copied();
        for order in [drawn, shuffled] {
            let (receipt, outcomes) = after_all(order.clone());
            let receipt = receipt.expect("there are reports");
            prop_assert_eq!(Some(receipt.highest.status), highest);
            // Exactly those reports are `Recorded` that are higher than all before them.
            for (place, outcome) in outcomes.iter().enumerate() {
                let before = order[..place].iter().max();
                let is_highest = before.is_none_or(|before| order[place] > *before);
                prop_assert_eq!(*outcome == Recorded::Recorded, is_highest);
            }
        }
    }

    #[test]
    fn the_history_has_the_last_fifty_reports_newest_first_and_is_read_back(drawn in statuses()) {
        let (receipt, outcomes) = after_all(drawn.clone());
        let receipt = receipt.expect("there are reports");
        let mut expected: Vec<PastReport> = (0..)
            .zip(drawn.iter().zip(outcomes))
            .map(|(second, (status, outcome))| PastReport { report: report(*status, second), outcome })
            .collect();
        expected.reverse();
        expected.truncate(50);
        prop_assert_eq!(&receipt.history, &expected);
        prop_assert_eq!(Receipt::from_json(&receipt.to_json()).ok(), Some(receipt));
    }
}
