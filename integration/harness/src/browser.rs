//! A browser without a window, driven through ChromeDriver: what a person with a screen and a keyboard does,
//! and what the page says to them.
//!
//! Both processes end with the [`Browser`]. Its profile is a folder of its own, so that it knows no cookie
//! and no setting of another browser, and it asks no server for anything but what a test opens.

mod driver;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::poll::wait_for;
use driver::{Driver, Failure};

/// How long a browser may take to start.
const START_BOUND: Duration = Duration::from_secs(60);
/// What installs what is missing.
const INSTALL: &str = "run `sh scripts/ensure-tools.sh --browser`, which installs it or says how";
/// The programs that are the browser, on the systems that have it; the same names as in
/// `scripts/ensure-tools.sh`.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Without a window, without a sandbox (which needs rights that a container lacks), and silent on the
/// network.
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
/// The height of its window, in pixels.
const HEIGHT: u32 = 900;

/// The colours that a person prefers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    /// Dark text on a light page.
    Light,
    /// The reverse.
    Dark,
}

impl Theme {
    /// As CSS spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// Keys that are no characters, for [`Browser::press`].
pub mod keys {
    /// To the next element that takes the focus.
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

/// What must end with the browser.
#[derive(Debug)]
struct Processes {
    driver: Child,
    browser: Option<u64>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(browser) = self.browser {
            // It may have ended by itself.
            drop(Command::new("kill").arg("-KILL").arg(browser.to_string()).stderr(Stdio::null()).status());
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

impl Browser {
    /// Starts one. Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        let profile = TempDir::new().expect("a temporary folder");
        // ChromeDriver chooses no port itself in a way that could be read; what takes this one in between
        // makes the start fail.
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

    /// The process of the browser; `None` if ChromeDriver does not tell.
    pub fn pid(&self) -> Option<u64> {
        self.processes.browser
    }

    /// Opens an address, and waits until the page is loaded.
    pub async fn open(&self, url: &str) {
        done(url, self.driver.post("url", &json!({"url": url})).await);
    }

    /// Makes the window so many pixels wide.
    pub async fn set_width(&self, width: u32) {
        let metrics = json!({"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Lets the person prefer these colours.
    pub async fn set_theme(&self, theme: Theme) {
        // Without motion, so that a picture shows no colour in between.
        let features = json!([
            {"name": "prefers-color-scheme", "value": theme.as_str()},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Runs the scripts of pages that are opened from now on, or none.
    pub async fn set_javascript(&self, on: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": !on})).await;
    }

    /// Clicks the first element that a CSS selector selects, and waits for the page to which that leads.
    pub async fn click(&self, css: &str) {
        let element = self.find(css).await;
        done(css, self.driver.post(&format!("element/{element}/click"), &json!({})).await);
    }

    /// Types a text into the first such element, in the place of what was there.
    pub async fn fill(&self, css: &str, text: &str) {
        let element = self.find(css).await;
        done(css, self.driver.post(&format!("element/{element}/clear"), &json!({})).await);
        done(css, self.driver.post(&format!("element/{element}/value"), &json!({"text": text})).await);
    }

    /// The text that a person sees in the first such element.
    pub async fn text(&self, css: &str) -> String {
        let element = self.find(css).await;
        text(done(css, self.driver.get(&format!("element/{element}/text")).await))
    }

    /// How many such elements there are.
    pub async fn count(&self, css: &str) -> usize {
        done(css, self.driver.elements(css).await).len()
    }

    /// Presses keys one after the other, wherever the focus is: characters, or those of [`keys`].
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

    /// Its source, as it is now.
    pub async fn source(&self) -> String {
        text(done("the source", self.driver.get("source").await))
    }

    /// The cookies of the page as the header `Cookie`, those included that no script can read.
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

    /// Whether the page can be scrolled sideways, which makes a phone unusable.
    pub async fn scrolls_sideways(&self) -> bool {
        let root = "document.documentElement";
        self.value(&format!("{root}.scrollWidth > {root}.clientWidth")).await == json!(true)
    }

    /// What the page, or the browser about it, has written to the console as an error or a warning since the
    /// last call.
    pub async fn console_errors(&self) -> Vec<String> {
        let entries = done("the log", self.driver.post("se/log", &json!({"type": "browser"})).await);
        entries.as_array().into_iter().flatten().map(|entry| text(entry["message"].clone())).collect()
    }

    /// The rules of accessibility (WCAG 2.2 A and AA, and good practice) that the page breaks, each with
    /// where. `axe` is the text of axe-core.
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

    /// Writes a picture of the whole page.
    pub async fn screenshot(&self, file: &Path) {
        let size = self.devtools("Page.getLayoutMetrics", json!({})).await["cssContentSize"].clone();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let picture = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.devtools("Page.captureScreenshot", picture).await;
        let bytes = BASE64.decode(picture["data"].as_str().unwrap_or_default()).expect("base64");
        std::fs::create_dir_all(file.parent().expect("a file is in a folder")).expect("the folder is made");
        std::fs::write(file, bytes).expect("the picture is written");
    }

    /// Ends it.
    pub async fn quit(self) {
        // Whatever it answers, its processes are ended.
        drop(self.driver.delete("").await);
    }

    async fn devtools(&self, method: &str, parameters: Value) -> Value {
        done(method, self.driver.devtools(method, &parameters).await)
    }
}

/// What a command gave; panics with what was asked for if it failed.
fn done<T>(what: &str, outcome: Result<T, Failure>) -> T {
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
