//! Every target, with its corpus and for a time with mutations of it. All in one program, so that they run at
//! the same time.

use fuzz::{TARGETS, run, target};

/// A test for each target.
macro_rules! targets {
    ($($test:ident: $name:literal;)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                run(target($name).expect("a target"));
            }
        )*
    };
}

targets! {
    an_entry_is_one_intent_or_breaks_one_rule: "entries";
    a_body_is_one_intent_or_breaks_one_rule: "bodies";
    an_event_becomes_an_entry_that_is_an_intent_or_is_refused: "events";
    a_text_is_strict_json_with_one_normal_form_or_breaks_a_limit: "json";
    a_catalogue_file_has_types_or_an_error_with_its_line: "catalogue";
    a_file_of_tokens_is_read_or_refused_without_showing_a_hash: "tokens";
    a_document_is_stored_as_the_same_value_and_changed_as_values_are: "documents";
    pages_of_a_query_are_its_whole_list_and_its_sql_holds_no_operand: "queries";
    a_cursor_is_the_place_that_it_was_made_of_or_is_refused: "cursors";
    a_connection_string_never_shows_its_password: "dsn";
    a_configuration_is_read_as_it_is_shown_or_names_its_faults: "configuration";
    a_small_text_is_read_as_it_is_printed: "texts";
    the_listener_ends_every_http1_connection_and_serves_the_next: "http1";
    the_listener_ends_every_http2_connection_and_serves_the_next: "http2";
    the_state_store_answers_every_request_of_its_contract: "state_http";
}

#[test]
fn every_target_has_a_test() {
    assert_eq!(TARGETS.map(|target| target.name), TESTED);
}
