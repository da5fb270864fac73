//! The operations on malformed intents.

use domain::resubmit::{ResubmitPlan, ResubmitReport};
use serde_json::json;

use super::super::examples;
use super::super::operations::{
    Body, Callers, Operation, answer, change, get, list, path_parameter, query_parameter,
};
use super::super::problems::NOT_FOUND;
use super::super::schemas::Schemas;
use crate::malformed_intents;
use crate::ports::ApiSettings;
use crate::resubmit::ResubmitRequest;
use crate::view::{MalformedIntents, MalformedIntentsPage};

pub(super) fn list_malformed_intents(schemas: &mut Schemas) -> Operation {
    Operation {
        description: "A producer's token lists those that name its producer.".to_owned(),
        callers: Callers::Readers,
        ..list(
            "listMalformedIntents",
            "intents",
            "Lists malformed intents of the stream, newest first.",
            &malformed_intents::PARAMS,
            answer(
                "A page.",
                schemas.answer::<MalformedIntentsPage>(),
                examples::malformed_intents_page(),
                &[],
            ),
        )
    }
}

pub(super) fn get_malformed_intents(schemas: &mut Schemas) -> Operation {
    let mut parameters =
        vec![path_parameter("stream_entry_id", "The id of the stream entry.", "1775121700000-0")];
    parameters.extend(malformed_intents::SHOW_PARAMS.iter().map(query_parameter));
    Operation {
        description: "A producer's token finds those that name its producer.".to_owned(),
        callers: Callers::Readers,
        parameters,
        problems: vec![("404", NOT_FOUND)],
        ..get(
            "getMalformedIntents",
            "intents",
            "Shows the malformed intents of a stream entry id, with their raw fields.",
            answer(
                "All that have the id.",
                schemas.answer::<MalformedIntents>(),
                examples::malformed_intents(),
                &[],
            ),
        )
    }
}

pub(super) fn resubmit(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let any = json!({"anyOf": [schemas.answer::<ResubmitReport>(), schemas.answer::<ResubmitPlan>()]});
    let success = answer(
        "What was done; with `dry_run`, what would be.",
        any,
        examples::resubmitted(),
        &["Idempotency-Replayed"],
    );
    change(
        "resubmitMalformedIntents",
        "Resubmits malformed intents.",
        "Their fields are appended to the intents stream again, unchanged, each as a new entry, whose outcome is that of the intent. An intent in conflict, one \
            whose fields were not kept whole, one of another stream and one that was resubmitted before are refused. A request ends after some seconds; if \
            `has_more` is true, another one continues, with `continue_before` as its `recorded_before` if that is not null."
            .to_owned(),
        Body {
            schema: schemas.request::<ResubmitRequest>(),
            examples: examples::resubmit_requests(),
            max_bytes: settings.max_body_bytes,
        },
        success,
    )
}
