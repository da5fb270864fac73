//! Whoever does the service's work in its place: a process of its own, as the service is, that is told each step by a line
//! on its input and answers with a line of JSON, so that what is prepared is outside the clock.
//!
//! The ceiling and the naive form are this same program, called with their name; the peers are programs for Node.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::ceiling::Ceiling;
use crate::measure::Cpu;
use crate::naive::Naive;
use crate::world::{MAIL, PUSH, World};

/// How long one step may take.
const BOUND: Duration = Duration::from_secs(300);
/// What the program is called with when it is a party itself.
pub(crate) const FLAG: &str = "--party";

/// A running party.
pub(crate) struct Party {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Party {
    /// This program as `name`, connected, with as many intents to bring through.
    pub(crate) async fn own(world: &World, name: &str, dsn: &str, intents: u32) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("could not find this program")?;
        let mut command = Command::new(program);
        command.arg(FLAG).arg(name);
        let mut party = Self::start(command, world, dsn, intents)?;
        party.hear("ready").await?;
        Ok(party)
    }

    /// Starts it and does not wait.
    pub(crate) fn start(mut command: Command, world: &World, dsn: &str, jobs: u32) -> anyhow::Result<Self> {
        command
            .env("BENCH_POSTGRES", plain(dsn))
            .env("BENCH_REDIS", world.redis.addr())
            .env("BENCH_JOBS", jobs.to_string())
            .env("BENCH_PUSH_STREAM", PUSH)
            .env("BENCH_MAIL_STREAM", MAIL)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("could not start it")?;
        let input = child.stdin.take().context("it has no input")?;
        let output = child.stdout.take().context("it has no output")?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    /// Tells it to do a step, and waits until it is done: its time, and what it used.
    pub(crate) async fn step(
        &mut self,
        world: &World,
        order: &str,
        phase: &str,
    ) -> anyhow::Result<(Duration, Cpu)> {
        let pid = self.child.id().context("it has ended")?;
        let (started, before) = (Instant::now(), world.cpu(pid));
        self.tell(order).await?;
        self.hear(phase).await?;
        Ok((started.elapsed(), world.cpu(pid).since(before)))
    }

    /// Tells it to do a step.
    pub(crate) async fn tell(&mut self, order: &str) -> anyhow::Result<()> {
        self.input.write_all(format!("{order}\n").as_bytes()).await.context("it does not listen")
    }

    /// The line with which it says that it has come to `phase`.
    pub(crate) async fn hear(&mut self, phase: &str) -> anyhow::Result<Value> {
        let line = tokio::time::timeout(BOUND, self.output.next_line()).await;
        let line = line.with_context(|| format!("it was not {phase:?} within {BOUND:?}"))??;
        let line = line.with_context(|| format!("it ended before it was {phase:?}"))?;
        let said: Value = serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        ensure!(said["phase"] == phase, "it said {line:?} instead of {phase:?}");
        Ok(said)
    }

    /// Waits until it has ended.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        drop(self.input);
        let status = tokio::time::timeout(BOUND, self.child.wait()).await.context("it does not end")??;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

/// Without the parameters that not every driver knows.
fn plain(dsn: &str) -> &str {
    dsn.split('?').next().unwrap_or(dsn)
}

/// Where a party's servers are.
pub(crate) struct Servers {
    /// `host:port`.
    pub(crate) redis: String,
    /// A connection string.
    pub(crate) postgres: String,
}

/// What this program does as `name`.
pub(crate) async fn serve(name: &str) -> anyhow::Result<()> {
    let setting = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let servers = Servers { redis: setting("BENCH_REDIS")?, postgres: setting("BENCH_POSTGRES")? };
    let intents: u32 = setting("BENCH_JOBS")?.parse().context("BENCH_JOBS is not a number")?;
    match name {
        "ceiling" => {
            let ceiling = Ceiling::connect(&servers).await?;
            answer("ready", Some("run")).await?;
            ceiling.run(intents).await?;
        }
        "naive" => {
            let naive = Naive::connect(&servers).await?;
            answer("ready", Some("run")).await?;
            naive.run(intents).await?;
        }
        other => bail!("there is no party {other:?}"),
    }
    // Its processor time is read before it ends.
    answer("done", None).await
}

/// Says how far it is, and waits for an order, or for the end of all orders.
async fn answer(phase: &str, expected: Option<&str>) -> anyhow::Result<()> {
    println!("{}", json!({ "phase": phase }));
    let read = tokio::task::spawn_blocking(|| std::io::stdin().lines().next().transpose());
    let order = read.await??;
    ensure!(order.as_deref() == expected, "expected {expected:?}, got {order:?}");
    Ok(())
}
