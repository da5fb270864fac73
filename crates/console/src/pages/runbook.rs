//! The runbook: the page of the documentation for operators, of the version that runs.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::RawQuery;
use axum::routing::get;
use maud::{Markup, html};

use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::markdown;
use crate::params::Params;
use crate::ports::{Console, Ports};

const PATH: &str = "/console/runbook";
/// The page in the repository, from its root.
const SOURCE: &str = "docs/operations.md";
/// The page as HTML, rendered once.
static CONTENT: LazyLock<Markup> = LazyLock::new(|| {
    let page = markdown::render(include_str!("../../../../docs/operations.md"));
    html! { article.prose { (page) } }
});

/// The route of this page.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(PATH, get(show))
}

/// The address of a section, which findings name by its place in the repository.
pub(super) fn section_path(section: &str) -> String {
    section.replacen(SOURCE, PATH, 1)
}

async fn show(RawQuery(query): RawQuery) -> Result<Page, PageError> {
    Params::parse(query.as_deref(), &[])?;
    Ok(Page::new(Section::Runbook, "Runbook", CONTENT.clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_section_to_which_a_finding_leads_is_on_the_page_once() {
        let html = CONTENT.clone().into_string();
        for section in domain::query::RUNBOOK_SECTIONS {
            let path = section_path(section);
            let anchor = path.strip_prefix("/console/runbook#").expect("a section of the page");
            assert_eq!(html.matches(&format!("id=\"{anchor}\"")).count(), 1, "{section}");
        }
        let ids: Vec<&str> = html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
        for link in html.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(ids.contains(&link), "{link}");
        }
        // Code stays as it is written.
        let html: String = html
            .split("<code>")
            .map(|part| part.split_once("</code>").map_or(part, |(_, rest)| rest))
            .collect();
        assert!(!html.contains("](") && !html.contains("```") && !html.contains("**"), "{html}");
    }
}
