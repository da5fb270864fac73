//! Random filters.

use proptest::prelude::*;
use proptest::sample::select;

fn any_condition() -> impl Strategy<Value = String> {
    let quoted = |text: &&str| format!("{text:?}");
    let texts = [
        "u-1",
        "u-2",
        "u-3",
        "U-3",
        "ops@example.com",
        "",
        "push",
        "email",
        "published",
        "pending",
        "failed",
        "dead_letter",
        "skipped",
        "delivered",
        "bounced",
        "game_master",
        "game_lobby",
        "key-1",
        "key-2",
        "Key-8",
        "1-0",
        "8-0",
        "user",
        "admin_email",
        "Nova",
        "nova",
        "r-1",
        "mail_stream_publish_failed",
        "2026-04-02T09:21:40.5Z",
    ];
    let mut operands: Vec<String> = texts.iter().map(quoted).collect();
    let others =
        ["0", "1", "1.0", "2", "3", "7", "9007199", "1e400", "null", "true", "[]", "[\"u-1\"]", "{\"x\": 1}"];
    operands.extend(others.map(str::to_owned));
    let seconds = (0..11_u32).prop_map(|second| format!("2026-04-02T09:21:{}Z", 40 + second));
    let operand = select(operands);
    let ordered = prop_oneof![
        select(texts.iter().map(quoted).collect::<Vec<_>>()),
        select(vec!["1".to_owned(), "2.5".to_owned()])
    ];
    let json = prop_oneof![
        3 => operand.clone().prop_filter("operators", |operand| operand != "{}"),
        2 => (select(vec!["$eq", "$ne", "$contains"]), operand.clone()).prop_map(|(name, operand)| format!("{{{name:?}: {operand}}}")),
        2 => (select(vec!["$gt", "$gte", "$lt", "$lte"]), ordered).prop_map(|(name, operand)| format!("{{{name:?}: {operand}}}")),
        2 => (select(vec!["$in", "$nin"]), prop::collection::vec(operand, 0..4)).prop_map(|(name, all)| format!("{{{name:?}: [{}]}}", all.join(","))),
        1 => any::<bool>().prop_map(|there| format!("{{\"$exists\": {there}}}")),
    ];
    let time = || {
        (select(vec!["$before", "$after"]), seconds.clone())
            .prop_map(|(name, time)| format!("{{{name:?}: {time:?}}}"))
    };
    let names = [
        "notification_id",
        "producer",
        "notification_type",
        "audience_kind",
        "idempotency_key",
        "request_id",
        "trace_id",
        "recipient",
        "recipient",
        "route.channel",
        "route.status",
        "route.status",
        "route.attempt_count",
        "route.last_error_classification",
        "receipt.status",
        "receipt.status",
        "receipt.at",
        "payload.game_name",
        "payload.turn_number",
        "payload.none",
    ];
    let times =
        ["accepted_at", "occurred_at", "route.published_at", "receipt.at", "payload.game_name", "request_id"];
    // Random names and operands that do not match find all or nothing, so some matching pairs are drawn on
    // purpose.
    let fitting = [
        ("producer", "game_lobby"),
        ("idempotency_key", "key-1"),
        ("audience_kind", "admin_email"),
        ("recipient", "u-1"),
        ("recipient", "u-2"),
        ("route.status", "published"),
        ("route.status", "dead_letter"),
        ("receipt.status", "delivered"),
        ("receipt.status", "bounced"),
        ("payload.game_name", "Nova"),
        ("request_id", "r-1"),
    ];
    prop_oneof![
        4 => (select(names.to_vec()), json).prop_map(|(name, test)| format!("{name:?}: {test}")),
        1 => (select(times.to_vec()), time()).prop_map(|(name, test)| format!("{name:?}: {test}")),
        2 => select(fitting.to_vec()).prop_map(|(name, operand)| format!("{name:?}: {operand:?}")),
    ]
}

pub(super) fn any_filter() -> impl Strategy<Value = String> {
    let object = prop::collection::vec(any_condition(), 1..4).prop_map(|mut members| {
        members.sort_by_key(|member| member.split(':').next().map(str::to_owned));
        members.dedup_by_key(|member| member.split(':').next().map(str::to_owned));
        members
    });
    let object = object.prop_map(|members| format!("{{{}}}", members.join(", ")));
    object.prop_recursive(3, 8, 3, |inner| {
        let group = (select(vec!["$and", "$or"]), prop::collection::vec(inner.clone(), 1..3))
            .prop_map(|(name, all)| format!("{{{name:?}: [{}]}}", all.join(", ")));
        let beside = (any_condition(), inner.clone())
            .prop_map(|(condition, inner)| format!("{{{condition}, \"$not\": {inner}}}"));
        prop_oneof![3 => group, 1 => beside, 1 => inner.prop_map(|inner| format!("{{\"$not\": {inner}}}"))]
    })
}
