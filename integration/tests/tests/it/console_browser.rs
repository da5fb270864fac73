//! The console in a browser, as an operator uses it: every page in both themes on a desk and on a phone,
//! changes of dead letters with and without scripts and by keyboard alone, and sessions that end.
//!
//! Pictures of every page are kept under `target/screenshots`.

mod changes;
mod data;
mod pages;
mod sessions;

use std::path::{Path, PathBuf};

use harness::{Browser, Service, ServiceBuilder, Theme, wait_for};

use crate::api::{OPERATOR, TokensFile, with_api};
use crate::world::*;

/// Wide enough for tables.
const DESK: u32 = 1_280;
/// A small phone.
const PHONE: u32 = 360;

fn with_console(service: ServiceBuilder, tokens: &TokensFile) -> ServiceBuilder {
    with_api(service, tokens).env("NOTIFICATION_CONSOLE", "on")
}

/// The folder of the build.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder").to_owned()
}

/// The text of axe-core.
fn axe() -> String {
    let file = target().join("browser-tools/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!("{}: {error}: run `sh scripts/ensure-tools.sh --browser`", file.display());
    })
}

fn address(service: &Service, path: &str) -> String {
    format!("http://{}{path}", service.api_addr())
}

/// Signs in with the sign-in form.
async fn sign_in(browser: &Browser, service: &Service) {
    browser.open(&address(service, "/console/")).await;
    browser.fill("#token", OPERATOR).await;
    browser.click("main button[type=submit]").await;
    heading(browser, "Overview").await;
}

/// Waits for a page by its heading.
async fn heading(browser: &Browser, expected: &str) {
    wait_for(&format!("the page {expected}"), BOUND, async || {
        // In one step: between two the browser may leave the page.
        let shown = browser.value("document.querySelector('h1')?.innerText ?? ''").await;
        shown.as_str().is_some_and(|shown| shown.contains(expected)).then_some(())
    })
    .await;
}

async fn look(browser: &Browser, theme: Theme, width: u32) {
    browser.set_theme(theme).await;
    browser.set_width(width).await;
}
