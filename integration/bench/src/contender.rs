//! A contender: a process that does the work of the service, for comparison. It reads a line on its standard
//! input for each step and responds with a line of JSON, so that its preparation is not measured.
//!
//! The baseline and the naive implementation are this same program, started with their name; the peers are
//! programs for Node. The load generators of the scenarios `http` and `receipts` are started in the same way,
//! so that each has a process whose processor time is separate.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::measure::Cpu;
use crate::testbed::{MAIL, PUSH, Testbed};

/// The time limit of one step.
const BOUND: Duration = Duration::from_secs(300);
/// The argument with which this program runs as a contender.
pub(crate) const FLAG: &str = "--contender";

/// A running contender.
pub(crate) struct Contender {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Contender {
    /// Starts this program as contender `name`, which must process `intents` intents, and waits until it is
    /// connected.
    pub(crate) async fn own(testbed: &Testbed, name: &str, dsn: &str, intents: u32) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("could not find this program")?;
        let mut command = Command::new(program);
        command.arg(FLAG).arg(name);
        let mut contender = Self::start(command, testbed, dsn, intents)?;
        contender.expect("ready").await?;
        Ok(contender)
    }

    /// The process id.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the contender has ended")
    }

    /// Starts `command` as a contender and does not wait for it.
    pub(crate) fn start(
        mut command: Command,
        testbed: &Testbed,
        dsn: &str,
        jobs: u32,
    ) -> anyhow::Result<Self> {
        command
            .env("BENCH_POSTGRES", plain(dsn))
            .env("BENCH_REDIS", testbed.redis.addr())
            .env("BENCH_JOBS", jobs.to_string())
            .env("BENCH_PUSH_STREAM", PUSH)
            .env("BENCH_MAIL_STREAM", MAIL)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("could not start the contender")?;
        let input = child.stdin.take().context("the contender has no standard input")?;
        let output = child.stdout.take().context("the contender has no standard output")?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    /// Requests a step and waits until it is done. Returns its duration and the processor time used.
    pub(crate) async fn step(
        &mut self,
        testbed: &Testbed,
        step: &str,
        phase: &str,
    ) -> anyhow::Result<(Duration, Cpu)> {
        let pid = self.pid()?;
        let (started, before) = (Instant::now(), testbed.cpu(pid));
        self.request(step).await?;
        self.expect(phase).await?;
        Ok((started.elapsed(), testbed.cpu(pid).since(before)))
    }

    /// Requests a step and does not wait for it.
    pub(crate) async fn request(&mut self, step: &str) -> anyhow::Result<()> {
        self.input
            .write_all(format!("{step}\n").as_bytes())
            .await
            .context("the contender does not read its input")
    }

    /// Waits for the line that reports `phase`, and returns it.
    pub(crate) async fn expect(&mut self, phase: &str) -> anyhow::Result<Value> {
        let line = tokio::time::timeout(BOUND, self.output.next_line()).await;
        let line = line.with_context(|| format!("the contender was not {phase:?} within {BOUND:?}"))??;
        let line = line.with_context(|| format!("the contender ended before it was {phase:?}"))?;
        let report: Value = serde_json::from_str(&line)
            .with_context(|| format!("the contender printed {line:?}, which is no JSON"))?;
        ensure!(report["phase"] == phase, "the contender printed {line:?} instead of phase {phase:?}");
        Ok(report)
    }

    /// Closes its input and waits until it has ended.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        drop(self.input);
        let status =
            tokio::time::timeout(BOUND, self.child.wait()).await.context("the contender does not end")??;
        ensure!(status.success(), "the contender ended with {status}");
        Ok(())
    }
}

/// The connection string without its parameters, which not every driver supports.
fn plain(dsn: &str) -> &str {
    dsn.split('?').next().unwrap_or(dsn)
}
