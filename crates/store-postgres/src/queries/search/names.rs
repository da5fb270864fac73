//! The columns and documents behind the names of a search.

use domain::query::{SEARCH_NAMES, SearchName};
use pg::bind;
use sea_query::{
    CaseStatement, Expr, ExprTrait, Func, Iden, IntoColumnRef, JoinType, Query, SelectStatement,
    SubQueryStatement,
};
use state::query::compile::{FilterTarget, Source};
use state::query::expressions::{Member, Path, helper_name};
use state::query::{Filter, NameKind, Names};

use crate::schema::{Input, Records, Routes, receipts_table};

/// The names that a filter may use.
pub(super) struct SearchNames;

impl Names for SearchNames {
    fn kind(&self, name: &str) -> Option<NameKind> {
        SearchName::parse(name).map(|found| if found.is_time() { NameKind::Time } else { NameKind::Json })
    }

    fn describe(&self) -> &str {
        SEARCH_NAMES
    }
}

/// The records, their payloads and their routes.
pub(super) struct OnRecords {
    /// The members of the payload that the filter uses.
    members: Vec<Member>,
    /// The payload as a document, in the SQL of [`OnRecords::join_payload`].
    payload: String,
    /// The function that reads times within payloads. A migration creates it with the table of receipts.
    helper: String,
}

impl OnRecords {
    pub(super) fn of(filter: &Filter) -> Self {
        let payload = |name: &str| match SearchName::parse(name) {
            Some(SearchName::Payload(member)) => Member::new(member),
            _ => None,
        };
        Self {
            members: filter.names().into_iter().filter_map(payload).collect(),
            payload: format!("\"{}\".\"{}\"", Input::Payload.unquoted(), Input::Document.unquoted()),
            helper: helper_name(receipts_table().as_str()),
        }
    }

    /// Converts the payload of each record to a document, once for all conditions on it, and only for records
    /// that meet the other conditions of the outermost object: an offset keeps the planner from repeating the
    /// function in each condition.
    pub(super) fn join_payload(&self, select: &mut SelectStatement) {
        if self.members.is_empty() {
            return;
        }
        let document = Func::cust("payload_document").arg(Expr::col((Records::Table, Records::PayloadJson)));
        let payload = Query::select().expr_as(document, Input::Document).offset(0).take();
        select.join_lateral(JoinType::InnerJoin, payload, Input::Payload, Expr::cust("TRUE"));
    }
}

impl FilterTarget for OnRecords {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        let text = |column| Source::Text { column, helper: &self.helper };
        let record = |column| text(Expr::col((Records::Table, column)));
        let route = |column| text(Expr::col((Routes::Table, column)));
        Some(match SearchName::parse(name)? {
            SearchName::NotificationId => record(Records::NotificationId),
            SearchName::Producer => record(Records::Producer),
            SearchName::NotificationType => record(Records::NotificationType),
            SearchName::AudienceKind => record(Records::AudienceKind),
            SearchName::IdempotencyKey => record(Records::IdempotencyKey),
            SearchName::AcceptedAt => Source::Time(Expr::col((Records::Table, Records::AcceptedAt))),
            SearchName::OccurredAt => Source::Time(Expr::col((Records::Table, Records::OccurredAt))),
            SearchName::RequestId => text(unless_empty((Records::Table, Records::RequestId))),
            SearchName::TraceId => text(unless_empty((Records::Table, Records::TraceId))),
            SearchName::Recipient => text(recipient()),
            SearchName::RouteChannel => route(Routes::Channel),
            SearchName::RouteStatus => route(Routes::Status),
            SearchName::RouteAttemptCount => {
                Source::Integer(Expr::col((Routes::Table, Routes::AttemptCount)))
            }
            SearchName::RouteLastErrorClassification => {
                text(unless_empty((Routes::Table, Routes::LastErrorClassification)))
            }
            SearchName::RoutePublishedAt => Source::Time(Expr::col((Routes::Table, Routes::PublishedAt))),
            SearchName::Payload(name) => {
                let member = self.members.iter().find(|member| member.as_str() == name)?;
                let path = Path { document: &self.payload, member, helper: &self.helper };
                Source::Member { path, indexed: Vec::new(), in_order: false }
            }
        })
    }

    fn relation(&self, name: &str) -> Option<&'static str> {
        SearchName::parse(name).filter(|found| found.is_of_route()).map(|_| "routes")
    }

    /// A subquery by the primary key of the routes, for each record separately.
    fn some_row(&self, _: &'static str, condition: Expr) -> Expr {
        let id = Expr::col((Records::Table, Records::NotificationId));
        let route = Query::select()
            .expr(Expr::cust("true"))
            .from(Routes::Table)
            .and_where(Expr::col((Routes::Table, Routes::NotificationId)).eq(id))
            .and_where(condition)
            .limit(1)
            .take();
        first(route)
    }
}

fn unless_empty(column: impl IntoColumnRef) -> Expr {
    Expr::expr(Func::cust("nullif").arg(Expr::col(column)).arg(bind::text("")))
}

/// The user's id or the administrator's address; NULL for a route without a recipient.
fn recipient() -> Expr {
    let reference = || Expr::col((Routes::Table, Routes::RecipientRef));
    let after = |kind: &str| {
        let begins = Expr::expr(Func::cust("starts_with").arg(reference()).arg(bind::text(kind)));
        let rest = Func::cust("substr").arg(reference()).arg(Expr::cust((kind.len() + 1).to_string()));
        (begins, Expr::expr(rest))
    };
    let ((is_user, user), (is_address, address)) = (after("user:"), after("email:"));
    CaseStatement::new().case(is_user, user).case(is_address, address).into()
}

/// True if `select` has a row. Unlike `EXISTS`, the planner never turns this into a scan of all rows of the
/// table.
fn first(select: SelectStatement) -> Expr {
    let row = Expr::SubQuery(None, Box::new(SubQueryStatement::SelectStatement(select)));
    Expr::expr(Func::coalesce([row, Expr::cust("false")]))
}
