//! Searching, and replaying and discarding dead letters: with scripts, without them, and by keyboard alone.

use harness::{Browser, Service, keys};

use super::*;
use crate::console_browser::data;

/// The maximum number of times that Tab is pressed to reach an element.
const MAX_TABS: usize = 80;

/// The form that confirms a plan.
const CONFIRM: &str = "form[action='/console/dead-letters/change']";

/// Moves the focus by the keyboard to the first element that a selector matches. Each element on the way must
/// show that it has the focus.
async fn tab_to(browser: &Browser, css: &str) {
    for _ in 0..MAX_TABS {
        browser.press(keys::TAB).await;
        let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle").await;
        let focused = browser.value("document.activeElement.outerHTML.slice(0, 200)").await;
        assert_ne!(outline, "none", "the focus is not seen on the way to {css}: {focused}");
        if browser.value(&format!("document.activeElement.matches({css:?})")).await == true {
            return;
        }
    }
    panic!("Tab does not lead to {css}");
}

async fn open_letters(world: &World) -> i64 {
    world.number("SELECT count(*) FROM dead_letters WHERE discarded_at IS NULL").await
}

async fn actions(world: &World) -> Vec<String> {
    world.column("SELECT action || ' ' || affected || ' ' || actor FROM operator_actions ORDER BY id").await
}

#[tokio::test]
async fn an_operator_searches_replays_and_discards_with_and_without_scripts_and_by_keyboard_alone() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service =
        with_console(world.service(), &tokens).env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1").start().await;
    data::ten_rows(&world, &service).await;
    let browser = Browser::start().await;
    sign_in(&browser, &service).await;

    searches(&browser, &service).await;
    chooses_all_of_a_page(&browser, &service).await;
    replays_one_that_is_chosen(&browser, &world, &service).await;
    browser.set_javascript(false).await;
    browser.open(&address(&service, "/console/dead-letters")).await;
    let shown = browser.text("form[aria-label='Choose dead letters']").await;
    assert!(!shown.contains("Choose all on this page"), "without a script it would do nothing: {shown}");
    discards_one_without_scripts(&browser, &world, &service).await;
    searches(&browser, &service).await;
    browser.set_javascript(true).await;
    replays_the_rest_by_keyboard(&browser, &world, &service).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    browser.quit().await;
}

/// Searches by a field, and page by page, with all of it in the address.
async fn searches(browser: &Browser, service: &Service) {
    browser.open(&address(service, "/console/notifications")).await;
    browser.click("main form[method=get] summary").await;
    browser.fill("#f-idempotency_key", "published-3").await;
    browser.click("main form[method=get] button[type=submit]").await;
    wait_for("the one that is found", BOUND, async || (browser.count("tbody tr").await == 1).then_some(()))
        .await;
    assert!(browser.url().await.contains("idempotency_key=published-3"));
    browser.click("tbody a").await;
    heading(browser, "Notification ").await;
    assert!(browser.text("main").await.contains("published-3"));

    browser.open(&address(service, "/console/notifications?limit=4")).await;
    let mut seen: Vec<String> = Vec::new();
    for expected in [4, 4, 2] {
        let first = wait_for("a page that was not seen yet", BOUND, async || {
            let first = browser.value("document.querySelector('tbody tr a')?.innerText ?? ''").await;
            let first = first.as_str().unwrap_or_default().to_owned();
            (!first.is_empty() && !seen.contains(&first)).then_some(first)
        });
        seen.push(first.await);
        assert_eq!(browser.count("tbody tr").await, expected);
        if expected == 4 {
            browser.click("a[rel=next]").await;
        }
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

/// Selects all rows with one box, which follows the boxes of the rows.
async fn chooses_all_of_a_page(browser: &Browser, service: &Service) {
    browser.open(&address(service, "/console/dead-letters")).await;
    let chosen = async || browser.count("main input[name=id]:checked").await;
    let all = async || browser.count("[data-check-all]:checked").await;
    browser.click("[data-check-all]").await;
    assert_eq!((chosen().await, all().await), (6, 1));
    browser.click("main input[name=id]").await;
    assert_eq!((chosen().await, all().await), (5, 0));
    browser.click("main input[name=id]").await;
    assert_eq!((chosen().await, all().await), (6, 1));
    browser.click("button[value=replay_chosen]").await;
    heading(browser, "Replay dead letters?").await;
    assert!(browser.text("main").await.contains("6 chosen by id"));
    browser.open(&address(service, "/console/dead-letters")).await;
    browser.click("[data-check-all]").await;
    browser.click("[data-check-all]").await;
    assert_eq!((chosen().await, all().await), (0, 0));
}

/// Shows the plan first; a form that is sent twice and a result that is reloaded change nothing more.
async fn replays_one_that_is_chosen(browser: &Browser, world: &World, service: &Service) {
    browser.open(&address(service, "/console/dead-letters")).await;
    browser.click("button[value=replay_chosen]").await;
    heading(browser, "That does not work").await;
    assert!(browser.text("main").await.contains("No dead letter is chosen"));
    assert_eq!(browser.console_errors().await.len(), 1, "the browser calls status 400 an error");
    browser.open(&address(service, "/console/dead-letters")).await;
    browser.click("main input[name=id]").await;
    browser.click("button[value=replay_chosen]").await;
    heading(browser, "Replay dead letters?").await;
    assert!(browser.text("main").await.contains("1 dead letter"));
    assert_eq!(open_letters(world).await, 6, "a plan changes nothing");
    let form = browser
        .value(&format!("new URLSearchParams(new FormData(document.querySelector({CONFIRM:?}))).toString()"))
        .await;
    let form = form.as_str().expect("a text").to_owned();
    browser.click(&format!("{CONFIRM} button[type=submit]")).await;
    heading(browser, "Dead letters replayed").await;
    assert!(browser.text("main").await.contains("1 dead letter was replayed"));
    let result = browser.url().await;
    browser.reload().await;
    assert!(browser.text("main").await.contains("1 dead letter was replayed"));
    // Sends the same form again, like a double click.
    let headers =
        [("Cookie", &*browser.cookies().await), ("Content-Type", "application/x-www-form-urlencoded")];
    let again =
        harness::request(&service.api_addr(), "POST", "/console/dead-letters/change", &headers, &form).await;
    let again = again.expect("the console answers");
    assert_eq!(again.status, 303);
    assert!(result.ends_with(again.header("location").expect("it leads to the result")));
    assert_eq!(actions(world).await, ["replay_dead_letters 1 ops"]);
    assert_eq!(open_letters(world).await, 5);
}

async fn discards_one_without_scripts(browser: &Browser, world: &World, service: &Service) {
    browser.open(&address(service, "/console/dead-letters")).await;
    browser.click("main input[name=id]").await;
    browser.click("button[value=discard_chosen]").await;
    heading(browser, "Discard dead letters?").await;
    browser.fill("#reason", "the game is over").await;
    browser.click(&format!("{CONFIRM} button[type=submit]")).await;
    heading(browser, "Dead letters discarded").await;
    assert_eq!(open_letters(world).await, 4);
    browser.open(&address(service, "/console/dead-letters?discarded=true")).await;
    assert!(browser.text("form[aria-label='Choose dead letters']").await.contains("the game is over"));
    assert_eq!(actions(world).await.last().map(String::as_str), Some("discard_dead_letters 1 ops"));
}

/// Works without a pointer: by the skip link to the content, to all matches, and through the plan.
async fn replays_the_rest_by_keyboard(browser: &Browser, world: &World, service: &Service) {
    browser.open(&address(service, "/console/dead-letters")).await;
    browser.press(keys::TAB).await;
    assert_eq!(browser.value("document.activeElement.textContent").await, "Skip to the content");
    browser.press(keys::ENTER).await;
    assert_eq!(browser.value("document.activeElement.id").await, "main");
    tab_to(browser, "main input[name=id]").await;
    browser.press(keys::SPACE).await;
    assert_eq!(browser.value("document.activeElement.checked").await, true);
    browser.open(&address(service, "/console/dead-letters?channel=push")).await;
    tab_to(browser, "button[value=replay_all]").await;
    browser.press(keys::ENTER).await;
    heading(browser, "Replay dead letters?").await;
    tab_to(browser, &format!("{CONFIRM} button[type=submit]")).await;
    browser.press(keys::ENTER).await;
    heading(browser, "Dead letters replayed").await;
    assert!(browser.text("main").await.contains("4 dead letters were replayed"));
    assert_eq!(actions(world).await.last().map(String::as_str), Some("replay_dead_letters 4 ops"));
    // Discarded dead letters stay discarded.
    assert_eq!(world.number("SELECT count(*) FROM dead_letters").await, 1);
    wait_for("the replayed routes are published", BOUND, async || {
        (world.number("SELECT count(*) FROM routes WHERE status = 'published'").await == 39).then_some(())
    })
    .await;
}
