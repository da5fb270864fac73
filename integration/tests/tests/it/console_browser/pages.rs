//! Every page with no data, ten rows and many: no sideways scrolling, no accessibility rule violated, no
//! error in the console.

use harness::{Browser, Service, Theme};

use super::*;
use crate::console_browser::data;

/// The pages that need no data.
const ALWAYS: [(&str, &str); 9] = [
    ("overview", "/console/"),
    ("notifications", "/console/notifications"),
    ("dead-letters", "/console/dead-letters"),
    ("malformed", "/console/malformed"),
    ("holds", "/console/holds"),
    ("actions", "/console/actions"),
    ("catalogue", "/console/catalogue"),
    ("runbook", "/console/runbook"),
    ("catalogue-type", "/console/catalogue/lobby.application.submitted"),
];

/// A browser, and the faults of the pages that it opened.
struct Visit<'a> {
    browser: &'a Browser,
    service: &'a Service,
    axe: String,
    problems: Vec<String>,
}

impl Visit<'_> {
    /// Opens a page and checks it.
    async fn open(&mut self, stage: &str, name: &str, path: &str) {
        self.browser.open(&address(self.service, path)).await;
        self.check(stage, name).await;
    }

    /// Checks the page that is open, in both themes and at both widths: colours depend on the theme and
    /// layout on the width, so two combinations cover each once. With ten rows, accessibility is checked in
    /// both, and pictures are taken of all four; without rows and with many, in one. The layout is measured
    /// in both.
    async fn check(&mut self, stage: &str, name: &str) {
        let is_looked_at = !["none", "many"].contains(&stage);
        for (theme, width) in [(Theme::Light, DESK), (Theme::Dark, PHONE)] {
            look(self.browser, theme, width).await;
            let shown = format!("{stage}-{name}-{}-{width}", theme.as_str());
            if self.browser.scrolls_sideways().await {
                self.problems.push(format!("{shown} scrolls sideways"));
            }
            if width == PHONE || is_looked_at {
                let violations = self.browser.accessibility_violations(&self.axe).await;
                self.problems.extend(violations.into_iter().map(|rule| format!("{shown}: {rule}")));
                self.picture(&shown).await;
            }
        }
        for (theme, width) in [(Theme::Light, PHONE), (Theme::Dark, DESK)] {
            if is_looked_at {
                look(self.browser, theme, width).await;
                self.picture(&format!("{stage}-{name}-{}-{width}", theme.as_str())).await;
            }
        }
        look(self.browser, Theme::Light, DESK).await;
        let errors = self.browser.console_errors().await;
        self.problems.extend(errors.into_iter().map(|error| format!("{stage}-{name}: {error}")));
    }

    async fn picture(&self, name: &str) {
        self.browser.screenshot(&target().join(format!("screenshots/{name}.png"))).await;
    }

    async fn always(&mut self, stage: &str) {
        for (name, path) in ALWAYS {
            self.open(stage, name, path).await;
        }
    }
}

#[tokio::test]
async fn every_page_is_sound_with_no_data_ten_rows_and_many_in_both_themes_on_a_desk_and_a_phone() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service =
        with_console(world.service(), &tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await;
    let browser = Browser::start().await;
    let mut visit = Visit { browser: &browser, service: &service, axe: axe(), problems: Vec::new() };
    visit.open("any", "sign-in", "/console/").await;
    sign_in(&browser, &service).await;
    visit.always("none").await;

    data::ten_rows(&world, &service).await;
    data::hold(&service).await;
    visit.always("ten").await;
    ten_rows_in_detail(&mut visit, &world).await;

    data::many_rows(&world).await;
    for path in ["/console/notifications", "/console/dead-letters", "/console/malformed"] {
        let name = path.rsplit('/').next().expect("a path has parts");
        visit.open("many", name, path).await;
        browser.click("a[rel=next]").await;
        visit.check("many", &format!("{name}-second-page")).await;
    }
    assert!(visit.problems.is_empty(), "{}", visit.problems.join("\n"));
    assert!(!browser.source().await.contains("owned</title>"));
    browser.quit().await;
}

/// The pages about a single item, and those that report an error.
async fn ten_rows_in_detail(visit: &mut Visit<'_>, world: &World) {
    let service = visit.service;
    let path = |id: &str| format!("/console/notifications/{id}");
    let of_key = |key: String| format!("SELECT notification_id FROM records WHERE idempotency_key = '{key}'");
    let dead = data::dead_notification(service).await;
    visit.open("ten", "notification-dead", &path(&dead)).await;
    let published = world.column(&of_key("published-1".to_owned())).await;
    visit.open("ten", "notification-published", &path(&published[0])).await;
    let shown = visit.browser.text("main").await;
    assert!(shown.contains("opened") && !shown.contains("Receipt: opened"), "{shown}");
    visit.open("ten", "route-published", &format!("{}?route=push:user:u-1", path(&published[0]))).await;
    assert!(visit.browser.text("main").await.contains("Receipt: opened"));
    let hostile = world.column(&of_key("k".repeat(255))).await;
    visit.open("ten", "notification-hostile", &path(&hostile[0])).await;
    let shown = visit.browser.text("main").await;
    assert!(shown.contains("<script>") && shown.contains("U+202E"), "{shown}");
    for (number, entry) in
        world.column("SELECT stream_entry_id FROM malformed_intents ORDER BY 1").await.iter().enumerate()
    {
        visit.open("ten", &format!("malformed-{}", number + 1), &format!("/console/malformed/{entry}")).await;
        assert!(visit.browser.text("main").await.contains("The broken rule"));
    }
    visit.open("ten", "search", "/console/notifications?filter=%7B%22payload.turn_number%22%3A%203%7D").await;
    assert_eq!(visit.browser.count("tbody tr").await, 1);
    visit.open("ten", "search-nothing", "/console/notifications?producer=nobody").await;
    visit.browser.open(&address(service, "/console/dead-letters")).await;
    visit.browser.click("button[value=discard_all]").await;
    heading(visit.browser, "Discard dead letters?").await;
    visit.check("ten", "plan-discard").await;
    // These respond with a status that a browser reports as an error.
    for (name, path) in [
        ("search-wrong", "/console/notifications?filter=%7B%22colour%22%3A1%7D"),
        ("not-found", "/console/notifications/none"),
        ("no-page", "/console/nowhere"),
    ] {
        visit.open("ten", name, path).await;
        visit.problems.retain(|problem| !problem.contains("Failed to load resource"));
    }
}
