//! Rows whose parent is missing. The foreign keys forbid them: only a session that ignores these leaves one.

use domain::ports::{ChildTable, OrphanPage, StoreError};
use domain::route::RouteKey;
use pg::{BoundStatement, Session, parameter};

use crate::codec::{column, count, route_key};
use crate::error::store_error;

/// The maximum number of rows of a page.
const MAX_PAGE_ROWS: usize = 4_096;

pub(super) async fn list(
    session: &Session,
    table: ChildTable,
    after: Option<&RouteKey>,
) -> Result<OrphanPage, StoreError> {
    let rows = session.query(orphans(table, after)).await.map_err(store_error)?;
    let mut page = OrphanPage::default();
    for row in &rows {
        let key = route_key(row)?;
        if count(row, "rows", "")? == MAX_PAGE_ROWS as u64 {
            page.next = Some(key.clone());
        }
        if column(row, "matches", "")? {
            page.orphans.push(key);
        }
    }
    Ok(page)
}

// Each reads a page of the primary key of the child table, and the primary key of its parent for each row. It
// returns the rows without a parent and the last row of a full page.
pg::statements! {
    /// Routes without a record.
    ROUTES = "audit.orphaned_routes", plan ["routes_pkey", "records_pkey"], "
        SELECT page.notification_id, page.route_id, page.rows, parent.notification_id IS NULL AS matches
        FROM (
            SELECT notification_id, route_id, row_number() OVER (ORDER BY notification_id, route_id) AS rows
            FROM routes
            WHERE (notification_id, route_id) > ($1::text, $2::text)
            ORDER BY notification_id, route_id
            LIMIT $3::bigint
        ) AS page
        LEFT JOIN records AS parent ON parent.notification_id = page.notification_id
        WHERE parent.notification_id IS NULL OR page.rows = $3::bigint";

    /// Dead letters without a route.
    DEAD_LETTERS = "audit.orphaned_dead_letters", plan ["dead_letters_pkey", "routes_pkey"], "
        SELECT page.notification_id, page.route_id, page.rows, parent.notification_id IS NULL AS matches
        FROM (
            SELECT notification_id, route_id, row_number() OVER (ORDER BY notification_id, route_id) AS rows
            FROM dead_letters
            WHERE (notification_id, route_id) > ($1::text, $2::text)
            ORDER BY notification_id, route_id
            LIMIT $3::bigint
        ) AS page
        LEFT JOIN routes AS parent
            ON parent.notification_id = page.notification_id AND parent.route_id = page.route_id
        WHERE parent.notification_id IS NULL OR page.rows = $3::bigint";
}

pub(super) fn orphans(table: ChildTable, after: Option<&RouteKey>) -> BoundStatement {
    let statement = match table {
        ChildTable::Routes => ROUTES,
        ChildTable::DeadLetters => DEAD_LETTERS,
    };
    let (id, route) = after.map_or(("", ""), |key| (key.notification_id.as_str(), key.route_id.as_str()));
    statement.bind([parameter::text(id), parameter::text(route), parameter::rows(MAX_PAGE_ROWS)])
}
