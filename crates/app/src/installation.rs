//! The installation: a schema serves one stream, and a stream is served by one schema (ADR 0019).
//!
//! Every start checks this after the migrations. If a process crashes after it wrote the row in PostgreSQL
//! and before it wrote the key in Redis, the row remains, and the next start writes the key.

use ambient::Tokens;
use anyhow::{Context, bail};
use store_postgres::{Installation, PgStore};
use store_redis::installation_key;

/// The configured stream is not the one that the schema serves.
#[derive(Debug, thiserror::Error)]
#[error(
    "NOTIFICATION_INTENTS_STREAM is {configured}, and this schema has served {stored} since its first start: \
     another stream needs a schema of its own"
)]
pub(crate) struct WrongStream {
    configured: String,
    stored: String,
}

/// Assigns `stream` to the schema at its first start, and returns the installation of the schema. Fails with
/// [`WrongStream`] if the schema serves another stream.
pub(crate) async fn of_schema(
    postgres: &PgStore,
    tokens: &impl Tokens,
    stream: &str,
) -> anyhow::Result<Installation> {
    let proposed = Installation {
        id: format!("{:032x}", u128::from_be_bytes(tokens.next())),
        intents_stream: stream.to_owned(),
    };
    let ours = postgres.installation(&proposed).await.context("the schema cannot be used")?;
    if ours.intents_stream != stream {
        bail!(WrongStream { configured: stream.to_owned(), stored: ours.intents_stream });
    }
    Ok(ours)
}

/// Fails unless `serving`, the installation that has claimed the stream in Redis, is that of the schema.
pub(crate) fn check_claim(ours: &Installation, serving: &str) -> anyhow::Result<()> {
    let Installation { id, intents_stream: stream } = ours;
    if serving != id {
        bail!(
            "another installation ({serving}; this schema is {id}) serves the stream {stream} on this Redis; \
             if it is gone, delete the key {} in Redis and start again",
            installation_key(stream).key,
        );
    }
    tracing::info!(installation = id, stream, "this installation serves the stream");
    Ok(())
}
