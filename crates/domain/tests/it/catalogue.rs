//! The eighteen built-in types: their producers, their channels, and every field of their payloads.

use domain::catalog::AudienceKind::{AdminEmail, User};
use domain::catalog::{AudienceKind, Catalog, NotificationType};
use domain::intent::decode;
use domain::malformed_intent::FailureCode;
use domain::route::Channel::{self, Email, Push};
use serde_json::{Map, Value, json};

use crate::entry;

const BOTH: &[Channel] = &[Push, Email];
const MAIL: &[Channel] = &[Email];

/// Name, producer, channels for users, channels for administrators, fields of the payload.
type Row = (&'static str, &'static str, Option<&'static [Channel]>, Option<&'static [Channel]>, &'static str);

const TYPES: [Row; 18] = [
    ("game.turn.ready", "game_master", Some(BOTH), None, "game_id game_name turn_number"),
    ("game.finished", "game_master", Some(BOTH), None, "game_id game_name final_turn_number"),
    ("game.generation_failed", "game_master", None, Some(MAIL), "game_id game_name failure_reason"),
    (
        "geo.review_recommended",
        "geoprofile",
        None,
        Some(MAIL),
        "user_id user_email observed_country usual_connection_country review_reason",
    ),
    ("lobby.runtime_paused_after_start", "game_lobby", None, Some(MAIL), "game_id game_name"),
    (
        "lobby.application.submitted",
        "game_lobby",
        Some(BOTH),
        Some(MAIL),
        "game_id game_name applicant_user_id applicant_name",
    ),
    ("lobby.membership.approved", "game_lobby", Some(BOTH), None, "game_id game_name"),
    ("lobby.membership.rejected", "game_lobby", Some(BOTH), None, "game_id game_name"),
    (
        "lobby.membership.blocked",
        "game_lobby",
        Some(BOTH),
        None,
        "game_id game_name membership_user_id membership_user_name reason",
    ),
    (
        "lobby.invite.created",
        "game_lobby",
        Some(BOTH),
        None,
        "game_id game_name inviter_user_id inviter_name",
    ),
    (
        "lobby.invite.redeemed",
        "game_lobby",
        Some(BOTH),
        None,
        "game_id game_name invitee_user_id invitee_name",
    ),
    (
        "lobby.invite.expired",
        "game_lobby",
        Some(MAIL),
        None,
        "game_id game_name invitee_user_id invitee_name",
    ),
    (
        "lobby.race_name.registration_eligible",
        "game_lobby",
        Some(BOTH),
        None,
        "game_id game_name race_name eligible_until_ms",
    ),
    ("lobby.race_name.registered", "game_lobby", Some(BOTH), None, "race_name"),
    (
        "lobby.race_name.registration_denied",
        "game_lobby",
        Some(MAIL),
        None,
        "game_id game_name race_name reason",
    ),
    ("runtime.image_pull_failed", "runtime_manager", None, Some(MAIL), RUNTIME),
    ("runtime.container_start_failed", "runtime_manager", None, Some(MAIL), RUNTIME),
    ("runtime.start_config_invalid", "runtime_manager", None, Some(MAIL), RUNTIME),
];

const RUNTIME: &str = "game_id image_ref error_code error_message attempted_at_ms";

fn is_integer(field: &str) -> bool {
    field.ends_with("_ms") || field.ends_with("_number")
}

fn sample(fields: &str) -> Map<String, Value> {
    let value = |field: &str| if is_integer(field) { json!(7) } else { json!("some text") };
    fields.split(' ').map(|field| (field.to_owned(), value(field))).collect()
}

fn accepts(known: &NotificationType, payload: &Map<String, Value>) -> bool {
    known.check_payload(&Value::Object(payload.clone())).is_ok()
}

/// `payload` with one field set to another value.
fn with(payload: &Map<String, Value>, field: &str, value: Value) -> Map<String, Value> {
    let mut payload = payload.clone();
    payload.insert(field.to_owned(), value);
    payload
}

#[test]
fn there_are_these_types_in_this_order() {
    let catalog = Catalog::built_in();
    let names: Vec<&str> = catalog.types().map(NotificationType::name).collect();
    assert_eq!(names, TYPES.map(|(name, ..)| name));
}

#[test]
fn each_type_has_its_producer_and_channels() {
    let catalog = Catalog::built_in();
    for (name, producer, users, administrators, _) in TYPES {
        let known = catalog.get(name).expect(name);
        assert_eq!(known.producers(), [producer], "{name}");
        assert_eq!(known.channels(User), users, "{name}");
        assert_eq!(known.channels(AdminEmail), administrators, "{name}");
    }
}

#[test]
fn each_type_takes_exactly_its_fields_each_of_its_kind() {
    let catalog = Catalog::built_in();
    for (name, _, _, _, fields) in TYPES {
        let known = catalog.get(name).expect(name);
        let payload = sample(fields);
        assert!(accepts(known, &payload), "{name}");
        assert!(!accepts(known, &with(&payload, "surprise", json!("x"))), "{name} with one more");
        for field in fields.split(' ') {
            let mut without = payload.clone();
            without.remove(field);
            assert!(!accepts(known, &without), "{name} without {field}");
            let wrong = if is_integer(field) {
                [json!("7"), json!(7.5), json!(null)]
            } else {
                [json!(""), json!(7), json!(null)]
            };
            for value in wrong {
                assert!(
                    !accepts(known, &with(&payload, field, value.clone())),
                    "{name} with {field} {value}"
                );
            }
        }
    }
}

#[test]
fn each_type_can_be_sent_to_each_of_its_audiences_and_to_no_other() {
    let catalog = Catalog::built_in();
    for (name, producer, users, administrators, fields) in TYPES {
        let payload = Value::Object(sample(fields)).to_string();
        for (recipients, allowed) in [("[\"u-1\"]", users), ("", administrators)] {
            let decoded = decode(&entry(name, producer, recipients, "1", &payload), &catalog);
            let code = decoded.err().map(|rejection| rejection.code);
            let expected = if allowed.is_some() { None } else { Some(FailureCode::AudienceNotAllowed) };
            assert_eq!(code, expected, "{name} to {recipients:?}");
        }
    }
}

#[test]
fn seven_types_have_a_list_of_administrators() {
    let catalog = Catalog::built_in();
    let for_administrators = catalog.types().filter(|known| known.channels(AdminEmail).is_some());
    let mut variables: Vec<String> =
        for_administrators.map(NotificationType::admin_emails_variable).collect();
    variables.sort();
    let expected = [
        "GAME_GENERATION_FAILED",
        "GEO_REVIEW_RECOMMENDED",
        "LOBBY_APPLICATION_SUBMITTED",
        "LOBBY_RUNTIME_PAUSED_AFTER_START",
        "RUNTIME_CONTAINER_START_FAILED",
        "RUNTIME_IMAGE_PULL_FAILED",
        "RUNTIME_START_CONFIG_INVALID",
    ];
    assert_eq!(variables, expected.map(|name| format!("NOTIFICATION_ADMIN_EMAILS_{name}")));
}

#[test]
fn audiences_are_read_as_they_are_written() {
    for kind in AudienceKind::ALL {
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    assert!("users".parse::<AudienceKind>().is_err());
}
