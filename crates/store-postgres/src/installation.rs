//! The installation: the intents stream that this schema serves, and the id that Redis stores for it (ADR
//! 0019).
//!
//! The first start writes the only row; every later one, and every replica that starts at the same time,
//! reads it. A crash in between leaves either no row or the whole one.

use domain::ports::StoreError;
use pg::parameter;

use crate::PgStore;
use crate::codec::{column, corrupt};
use crate::error::store_error;

/// The content of the only row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Installation {
    /// The id of the installation, unique to this schema.
    pub id: String,
    /// The intents stream that the schema serves.
    pub intents_stream: String,
}

impl PgStore {
    /// Returns the installation of this schema; the first start stores `proposed`.
    pub async fn installation(&self, proposed: &Installation) -> Result<Installation, StoreError> {
        const PLACE: &str = "installation";
        let session = self.session("read the installation").await?;
        let insert = INSERT.bind([parameter::text(&proposed.id), parameter::text(&proposed.intents_stream)]);
        session.query_once(insert).await.map_err(store_error)?;
        let rows = session.query_once(GET.bind([])).await.map_err(store_error)?;
        let row = rows.first().ok_or_else(|| corrupt(PLACE, "", "the row was deleted".to_owned()))?;
        Ok(Installation {
            id: column(row, "installation.id", PLACE)?,
            intents_stream: column(row, "installation.intents_stream", PLACE)?,
        })
    }
}

pg::statements! {
    /// Inserts the only row, unless it exists.
    INSERT = "installation.insert", plan [], "
        INSERT INTO installation (id, intents_stream, created_at) VALUES ($1::text, $2::text, clock_timestamp())
        ON CONFLICT DO NOTHING";

    /// The only row: the primary key allows no other.
    GET = "installation.get", plan ["Seq Scan"], "SELECT id, intents_stream FROM installation LIMIT 1";
}
