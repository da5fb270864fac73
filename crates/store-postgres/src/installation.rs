//! The installation: the intents stream that this schema serves, and the id that Redis stores for it (ADR
//! 0019).
//!
//! The first start writes the only row; every later one, and every replica that starts at the same time,
//! reads it. A crash in between leaves either no row or the whole one.

use domain::ports::StoreError;
use pg::sql::insert_rows;
use pg::{PgError, Session, bind};
use sea_query::{Expr, InsertStatement, OnConflict, Query, SelectStatement};

use crate::PgStore;
use crate::codec::{column, corrupt};
use crate::error::store_error;
use crate::schema::Installation as Columns;

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
        session.query_once(&insert(proposed)).await.map_err(store_error)?;
        let rows = session.query_once(&select()).await.map_err(store_error)?;
        let row = rows.first().ok_or_else(|| corrupt(PLACE, "", "the row was deleted".to_owned()))?;
        Ok(Installation {
            id: column(row, "installation.id", PLACE)?,
            intents_stream: column(row, "installation.intents_stream", PLACE)?,
        })
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let any = Installation { id: String::new(), intents_stream: String::new() };
    session.prepare(&insert(&any)).await?;
    session.prepare(&select()).await?;
    Ok(())
}

fn insert(proposed: &Installation) -> InsertStatement {
    let mut insert = insert_rows(
        Columns::Table,
        [
            (Columns::Id, bind::text(&proposed.id)),
            (Columns::IntentsStream, bind::text(&proposed.intents_stream)),
            (Columns::CreatedAt, Expr::cust("clock_timestamp()")),
        ],
    );
    insert.on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

/// The primary key allows one row only.
fn select() -> SelectStatement {
    Query::select().columns([Columns::Id, Columns::IntentsStream]).from(Columns::Table).limit(1).take()
}
