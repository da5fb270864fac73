//! Rows whose parent is missing. The foreign keys forbid them: only a session that ignores these leaves one.

use domain::ports::{ChildTable, OrphanPage, StoreError};
use domain::route::RouteKey;
use pg::sql::Written;
use pg::{Session, bind};

use crate::codec::{column, count, route_key};
use crate::error::store_error;

/// The maximum number of rows of a page.
const MAX_PAGE_ROWS: usize = 4_096;

pub(super) async fn list(
    session: &Session,
    table: ChildTable,
    after: Option<&RouteKey>,
) -> Result<OrphanPage, StoreError> {
    let rows = session.query(&orphans(table, after)).await.map_err(store_error)?;
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

/// A page of the primary key of the child table, and the primary key of its parent for each row. Returns the
/// rows without a parent and the last row of a full page.
pub(super) fn orphans(table: ChildTable, after: Option<&RouteKey>) -> Written {
    let (child, parent, condition) = match table {
        ChildTable::Routes => ("routes", "records", ""),
        ChildTable::DeadLetters => ("dead_letters", "routes", " AND parent.route_id = page.route_id"),
    };
    let text = format!(
        "SELECT page.notification_id, page.route_id, page.rows, parent.notification_id IS NULL AS matches \
         FROM (SELECT notification_id, route_id, row_number() OVER (ORDER BY notification_id, route_id) AS rows \
               FROM {child} WHERE (notification_id, route_id) > ($1, $2) \
               ORDER BY notification_id, route_id LIMIT {MAX_PAGE_ROWS}) AS page \
         LEFT JOIN {parent} AS parent ON parent.notification_id = page.notification_id{condition} \
         WHERE parent.notification_id IS NULL OR page.rows = {MAX_PAGE_ROWS}"
    );
    let (id, route) = after.map_or(("", ""), |key| (key.notification_id.as_str(), key.route_id.as_str()));
    Written::new(text, [bind::text(id), bind::text(route)])
}
