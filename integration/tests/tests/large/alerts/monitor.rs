//! A real Prometheus with the rules that operators get, and its reports on their alerts.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::wait_for;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::alert_rules::{RULES, rules};
use crate::package::free_address;
use crate::world::BOUND;

/// The job of the service, as the rules expect it.
pub(super) const SERVICE: &str = "notification";
/// The time for which a condition must hold: longer than one failed reading of the gauges lasts, which are
/// read every 10 s.
const FOR: &str = "12s";
/// The time for which other alerts are watched once the expected one fires: a reading, [`FOR`] and a margin.
const AFTERWARDS: Duration = Duration::from_secs(40);
/// Longer than any condition needs to hold: the age of a minute that some have, and the reading of the
/// gauges.
const FIRE_BOUND: Duration = Duration::from_secs(300);

/// A Prometheus that scrapes and evaluates every second.
pub(super) struct Monitor {
    process: Child,
    addr: String,
    _folder: TempDir,
}

impl Monitor {
    /// A Prometheus that scrapes a service alone.
    pub(super) async fn start(target: &str) -> Self {
        Self::start_for(&[(SERVICE, &[target])]).await
    }

    /// A Prometheus that scrapes these jobs and their targets.
    pub(super) async fn start_for(jobs: &[(&str, &[&str])]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let rules = std::fs::read_to_string(RULES).expect("the rules");
        let shortened = rules.lines().map(|line| match line.split_once("for: ") {
            Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: {FOR}\n"),
            _ => format!("{line}\n"),
        });
        write(folder.path(), "alerts.yml", &shortened.collect::<String>());
        let job = |(job, targets): &(&str, &[&str])| {
            let targets: Vec<String> = targets.iter().map(|target| format!("'{target}'")).collect();
            format!("{{job_name: {job}, static_configs: [{{targets: [{}]}}]}}", targets.join(", "))
        };
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: [alerts.yml]\n\
             scrape_configs: [{}]\n",
            jobs.iter().map(job).collect::<Vec<_>>().join(", ")
        );
        write(folder.path(), "prometheus.yml", &config);
        let addr = free_address();
        let process = Command::new("prometheus")
            .current_dir(folder.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"])
            .arg(format!("--web.listen-address={addr}"))
            .stdin(Stdio::null())
            .spawn()
            .expect("Prometheus is installed: scripts/ensure-tools.sh --large");
        let monitor = Self { process, addr, _folder: folder };
        let targets: usize = jobs.iter().map(|(_, targets)| targets.len()).sum();
        wait_for("the targets are scraped", BOUND, async || {
            (monitor.query("up == 1").await?.len() == targets).then_some(())
        })
        .await;
        // An evaluation before the first scrape finds the service absent.
        wait_for("the service is found", BOUND, async || {
            (!monitor.firing().await.contains("NotificationDown")).then_some(())
        })
        .await;
        monitor
    }

    /// The label `alertname` of every series of `expr`; a series without it is an empty text.
    pub(super) async fn query(&self, expr: &str) -> Option<Vec<String>> {
        let encode = |byte: u8| format!("%{byte:02X}");
        let query: String = expr.bytes().map(encode).collect();
        let mut stream = TcpStream::connect(&self.addr).await.ok()?;
        // By HTTP/1.0, whose responses are not chunked.
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let body: serde_json::Value = serde_json::from_str(body).ok()?;
        let name = |series: &serde_json::Value| {
            series["metric"]["alertname"].as_str().unwrap_or_default().to_owned()
        };
        Some(body["data"]["result"].as_array()?.iter().map(name).collect())
    }

    async fn firing(&self) -> BTreeSet<String> {
        let alerts = self.query(r#"ALERTS{alertstate="firing"}"#).await;
        alerts.expect("Prometheus answers").into_iter().collect()
    }

    /// Waits until the gauges were read, and checks that no alert fires.
    pub(super) async fn is_quiet(&self, gauge: &str) {
        wait_for("the gauges are scraped", BOUND, async || {
            (!self.query(gauge).await?.is_empty()).then_some(())
        })
        .await;
        assert_eq!(self.firing().await, BTreeSet::new(), "before anything is broken");
    }

    /// Waits until `alert` fires, and checks that no other alert does by then or soon after, except its
    /// consequences.
    pub(super) async fn sees(&self, alert: &str) {
        self.sees_for(alert, AFTERWARDS).await;
    }

    pub(super) async fn sees_for(&self, alert: &str, afterwards: Duration) {
        let rule = rules().into_iter().find(|rule| rule.alert == alert).expect("there is such a rule");
        let allowed: BTreeSet<String> = rule.consequences.into_iter().chain([alert.to_owned()]).collect();
        let begun = Instant::now();
        let look = async || {
            let firing = self.firing().await;
            let others: Vec<&String> = firing.difference(&allowed).collect();
            assert!(others.is_empty(), "{others:?} fire, which are no consequences of {alert}");
            firing
        };
        wait_for(&format!("{alert} fires"), FIRE_BOUND, async || look().await.contains(alert).then_some(()))
            .await;
        println!("{alert}: fires after {:.0?}", begun.elapsed());
        let fired = Instant::now();
        let mut all = BTreeSet::new();
        wait_for("the consequences had time to follow", BOUND, async || {
            all.extend(look().await);
            (fired.elapsed() > afterwards).then_some(())
        })
        .await;
        println!("{alert}: {all:?}");
    }

    /// Waits until no alert fires any more.
    pub(super) async fn calms_down(&self) {
        wait_for("nothing fires any more", FIRE_BOUND, async || self.firing().await.is_empty().then_some(()))
            .await;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("the folder is there");
}
