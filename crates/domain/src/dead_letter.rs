//! Dead letters: routes that used up their attempts.

use crate::route::Channel;

/// Returns the operator's remedy for a dead letter of this classification, for `dead_letters.recovery_hint`.
pub fn recovery_hint(channel: Channel, classification: &str) -> &'static str {
    match (channel, classification) {
        (_, PAYLOAD_ENCODING_FAILED) => {
            "the stored record or route cannot be written as an outbound entry: compare it with the catalogue, fix it, then replay the dead letter"
        }
        (Channel::Push, _) => {
            "the gateway stream refused the entry: check the type of the key in NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM, then replay the dead letter"
        }
        (Channel::Email, _) => {
            "the mail stream refused the entry: check the type of the key in NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM, then replay the dead letter"
        }
    }
}

/// The classification of an attempt whose entry could not be encoded.
pub const PAYLOAD_ENCODING_FAILED: &str = "payload_encoding_failed";
