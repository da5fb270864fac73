//! A headless browser, driven through ChromeDriver: the actions of a person with a screen and a keyboard, and
//! the page's reactions.
//!
//! Both processes end with the [`Browser`]. Its profile is a separate folder, so that it has no cookie and no
//! setting of another browser, and it sends no requests except for the pages that a test opens.

mod driver;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::poll::wait_for;
use driver::{Driver, DriverFailure};

/// The time limit of a browser's start.
const START_BOUND: Duration = Duration::from_secs(60);
/// The instruction to install a missing program.
const INSTALL: &str = "run `sh scripts/ensure-tools.sh --browser`, which installs it or says how";
/// The names of the browser's program on different systems; the same as in `scripts/ensure-tools.sh`.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Flags for a browser without a window, without a sandbox (which needs rights that a container lacks), and
/// without network traffic of its own.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
];
/// The height of the window, in pixels.
const HEIGHT: u32 = 900;

/// The colour scheme that a person prefers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    /// Dark text on a light page.
    Light,
    /// Light text on a dark page.
    Dark,
}

impl Theme {
    /// The theme's name in CSS.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// Special keys for [`Browser::press`].
pub mod keys {
    /// Moves to the next element that takes the focus.
    pub const TAB: &str = "\u{e004}";
    /// Activates a link or a button.
    pub const ENTER: &str = "\u{e007}";
    /// Ticks a box.
    pub const SPACE: &str = " ";
}

/// A browser with one window.
#[derive(Debug)]
pub struct Browser {
    driver: Driver,
    processes: Processes,
    _profile: TempDir,
}

/// The processes that must end with the browser.
#[derive(Debug)]
struct Processes {
    driver: Child,
    browser: Option<u64>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(browser) = self.browser {
            // The browser may have ended by itself.
            drop(Command::new("kill").arg("-KILL").arg(browser.to_string()).stderr(Stdio::null()).status());
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

impl Browser {
    /// Starts a browser. Panics with instructions if it is not installed.
    pub async fn start() -> Self {
        let profile = TempDir::new().expect("a temporary folder");
        // ChromeDriver does not report a port that it chooses itself. If another process takes this one in
        // between, the start fails.
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = port.expect("a free port").port();
        let driver = Command::new(installed(&["chromedriver"]))
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ChromeDriver starts");
        let mut processes = Processes { driver, browser: None };
        let (addr, options) = (format!("127.0.0.1:{port}"), options(profile.path()));
        let driver =
            wait_for("the browser starts", START_BOUND, async || Driver::connect(&addr, &options).await.ok())
                .await;
        processes.browser = driver.capabilities["goog:processID"].as_u64();
        let browser = Self { driver, processes, _profile: profile };
        browser.set_width(1_280).await;
        browser
    }

    /// The process of the browser; `None` if ChromeDriver does not report it.
    pub fn pid(&self) -> Option<u64> {
        self.processes.browser
    }

    /// Opens an address, and waits until the page is loaded.
    pub async fn open(&self, url: &str) {
        done(url, self.driver.post("url", &json!({"url": url})).await);
    }

    /// Sets the width of the window in pixels.
    pub async fn set_width(&self, width: u32) {
        let metrics = json!({"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Sets the preferred colour scheme.
    pub async fn set_theme(&self, theme: Theme) {
        // Reduced motion, so that a screenshot shows no transitional colours.
        let features = json!([
            {"name": "prefers-color-scheme", "value": theme.as_str()},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Enables or disables the scripts of pages that are opened from now on.
    pub async fn set_javascript(&self, on: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": !on})).await;
    }

    /// Clicks the first element that a CSS selector selects, and waits for the page to which it leads.
    pub async fn click(&self, css: &str) {
        let element = self.find(css).await;
        done(css, self.driver.post(&format!("element/{element}/click"), &json!({})).await);
    }

    /// Types a text into the first selected element, replacing its content.
    pub async fn fill(&self, css: &str, text: &str) {
        let element = self.find(css).await;
        done(css, self.driver.post(&format!("element/{element}/clear"), &json!({})).await);
        done(css, self.driver.post(&format!("element/{element}/value"), &json!({"text": text})).await);
    }

    /// The visible text of the first selected element.
    pub async fn text(&self, css: &str) -> String {
        let element = self.find(css).await;
        text(done(css, self.driver.get(&format!("element/{element}/text")).await))
    }

    /// The number of selected elements.
    pub async fn count(&self, css: &str) -> usize {
        done(css, self.driver.elements(css).await).len()
    }

    /// Presses keys one after the other, on the focused element: characters, or those of [`keys`].
    pub async fn press(&self, keys: &str) {
        done(keys, self.driver.press(keys).await);
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        done("reload", self.driver.post("refresh", &json!({})).await);
    }

    /// The address of the page.
    pub async fn url(&self) -> String {
        text(done("the address", self.driver.get("url").await))
    }

    /// The current source of the page.
    pub async fn source(&self) -> String {
        text(done("the source", self.driver.get("source").await))
    }

    /// The cookies of the page as the header `Cookie`, including those that scripts cannot read.
    pub async fn cookies(&self) -> String {
        let cookies = done("the cookies", self.driver.get("cookie").await);
        let pair =
            |cookie: &Value| format!("{}={}", text(cookie["name"].clone()), text(cookie["value"].clone()));
        cookies.as_array().into_iter().flatten().map(pair).collect::<Vec<_>>().join("; ")
    }

    async fn find(&self, css: &str) -> String {
        match done(css, self.driver.elements(css).await).into_iter().next() {
            Some(element) => element,
            None => panic!("there is no {css} on {}", self.url().await),
        }
    }

    /// The value of an expression in the page.
    pub async fn value(&self, expression: &str) -> Value {
        let script = json!({"script": format!("return ({expression})"), "args": []});
        done(expression, self.driver.post("execute/sync", &script).await)
    }

    /// Returns true if the page can be scrolled sideways, which makes it unusable on a phone.
    pub async fn scrolls_sideways(&self) -> bool {
        let root = "document.documentElement";
        self.value(&format!("{root}.scrollWidth > {root}.clientWidth")).await == json!(true)
    }

    /// The errors and warnings that the page or the browser has written to the console since the last call.
    pub async fn console_errors(&self) -> Vec<String> {
        let entries = done("the log", self.driver.post("se/log", &json!({"type": "browser"})).await);
        entries.as_array().into_iter().flatten().map(|entry| text(entry["message"].clone())).collect()
    }

    /// The accessibility rules (WCAG 2.2 A and AA, and good practice) that the page breaks, each with its
    /// place. `axe` is the source of axe-core.
    pub async fn accessibility_violations(&self, axe: &str) -> Vec<String> {
        if self.value("typeof axe").await == "undefined" {
            done("axe-core", self.driver.post("execute/sync", &json!({"script": axe, "args": []})).await);
        }
        let script = "const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ['violations'] }).then((results) => done(results.violations.map((rule) =>
                rule.id + ': ' + rule.help + ': ' + rule.nodes.map((node) => node.html + ' ' + node.failureSummary).join(' | '))),
                (error) => done(['axe-core failed: ' + error]));";
        let found = self.driver.post("execute/async", &json!({"script": script, "args": []})).await;
        done("axe-core", found).as_array().into_iter().flatten().map(|rule| text(rule.clone())).collect()
    }

    /// Writes a screenshot of the whole page.
    pub async fn screenshot(&self, file: &Path) {
        let size = self.devtools("Page.getLayoutMetrics", json!({})).await["cssContentSize"].clone();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let picture = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.devtools("Page.captureScreenshot", picture).await;
        let bytes = BASE64.decode(picture["data"].as_str().unwrap_or_default()).expect("base64");
        std::fs::create_dir_all(file.parent().expect("a file is in a folder")).expect("the folder is made");
        std::fs::write(file, bytes).expect("the picture is written");
    }

    /// Ends the browser.
    pub async fn quit(self) {
        // The processes are ended whatever the response is.
        drop(self.driver.delete("").await);
    }

    async fn devtools(&self, method: &str, parameters: Value) -> Value {
        done(method, self.driver.devtools(method, &parameters).await)
    }
}

/// The result of a command; panics with `what` if it failed.
fn done<T>(what: &str, outcome: Result<T, DriverFailure>) -> T {
    outcome.unwrap_or_else(|failure| panic!("{what}: {failure}"))
}

fn text(value: Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The options of Chrome.
fn options(profile: &Path) -> Value {
    let mut flags: Vec<String> = FLAGS.map(str::to_owned).into();
    flags.push(format!("--user-data-dir={}", profile.display()));
    json!({"binary": installed(&BROWSERS), "args": flags})
}

/// The first of these programs that is on `PATH`.
fn installed(programs: &[&str]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut places =
        programs.iter().flat_map(|program| folders.iter().map(move |folder| folder.join(program)));
    let found = places.find(|place| place.is_file());
    found.unwrap_or_else(|| panic!("{} is not installed: {INSTALL}", programs[0]))
}
