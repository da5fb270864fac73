//! The checks of an operator's command before it uses the tables: whether they exist, and the time of the
//! database.

use ambient::Timestamp;
use domain::ports::StoreError;
use pg::PgError;

use super::PgQueries;
use crate::codec::corrupt;
use crate::error::store_error;

/// The history of migrations in the first schema of `search_path`, to which they are applied; no row if there
/// is none.
const HAS_HISTORY: &str = "SELECT 1 WHERE \
    to_regclass(quote_ident(current_schema()) || '.refinery_schema_history') IS NOT NULL";
/// The last migration that was applied.
const LAST_VERSION: &str = "SELECT version FROM refinery_schema_history ORDER BY version DESC LIMIT 1";
/// The intents stream of the only row.
const INTENTS_STREAM: &str = "SELECT intents_stream FROM installation LIMIT 1";
const NOW_MICROS: &str = "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)";

impl PgQueries {
    /// The version of the last migration that was applied; `None` if none was.
    pub async fn schema_version(&self) -> Result<Option<u32>, StoreError> {
        const OPERATION: &str = "read the version of the schema";
        let Some(_) = self.raw(OPERATION, HAS_HISTORY).await? else { return Ok(None) };
        let version = self.raw(OPERATION, LAST_VERSION).await?;
        let parsed = version.map(|version| version.parse().map_err(|_| version)).transpose();
        parsed.map_err(|found| corrupt("refinery_schema_history.version", "", format!("it is {found}")))
    }

    /// The intents stream that the schema serves; `None` before the first start of the service.
    pub async fn intents_stream(&self) -> Result<Option<String>, StoreError> {
        self.raw("read the installation", INTENTS_STREAM).await
    }

    /// The time of the database's clock, which all replicas share.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        let micros = self.raw("read the time", NOW_MICROS).await?.unwrap_or_default();
        let parsed = micros.parse().ok().and_then(|micros| Timestamp::from_micros(micros).ok());
        parsed.ok_or_else(|| corrupt("clock_timestamp()", "", format!("{micros} is not a time")))
    }

    /// The only value of a statement without parameters.
    async fn raw(&self, operation: &'static str, sql: &str) -> Result<Option<String>, StoreError> {
        let found = async { self.pool.session(operation).await?.raw(sql).await };
        let found: Result<Vec<String>, PgError> = found.await;
        Ok(found.map_err(store_error)?.into_iter().next())
    }
}
