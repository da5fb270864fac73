// Runs one peer through the steps that its parent asks for; README.md describes the protocol.

import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";

const PEERS = {
  "graphile-worker": async () => (await import("./graphile-worker.mjs")).graphileWorker,
  "pg-boss": async () => (await import("./pg-boss.mjs")).pgBoss,
  bullmq: async () => (await import("./bullmq.mjs")).bullmq,
};
const OLDEST_NODE = 22;
const BATCH = 1000;
const IN_FLIGHT = 2;
const LOOK_EVERY_MS = 10;

let finished = false;

// A connection refused on each address of a name has its messages in the errors it is made of.
function messageOf(error) {
  return error.message || error.errors?.map(messageOf).join("; ") || error.code || String(error);
}

function fail(error) {
  console.error(`${process.argv[2] ?? "peer"}: ${messageOf(error)}`);
  process.exit(1);
}

function setting(name) {
  const value = process.env[name];
  if (!value) {
    throw new Error(`${name} is not set`);
  }
  return value;
}

function readSettings() {
  const jobs = Number(setting("BENCH_JOBS"));
  if (!Number.isSafeInteger(jobs) || jobs < 1) {
    throw new Error("BENCH_JOBS is not a positive whole number");
  }
  return {
    jobs,
    postgres: setting("BENCH_POSTGRES"),
    redis: setting("BENCH_REDIS"),
    streams: { push: setting("BENCH_PUSH_STREAM"), mail: setting("BENCH_MAIL_STREAM") },
  };
}

async function loadPeer(name) {
  if (!Object.hasOwn(PEERS, name ?? "")) {
    throw new Error(`usage: node peer.mjs ${Object.keys(PEERS).join(" | ")}`);
  }
  if (Number.parseInt(process.versions.node, 10) < OLDEST_NODE) {
    throw new Error(`Node ${OLDEST_NODE} is needed: run this with node_modules/.bin/node`);
  }
  return PEERS[name]();
}

/** Waits for the lines of standard input; its end means that the parent is gone. */
function readSteps() {
  const input = createInterface({ input: process.stdin });
  const lines = input[Symbol.asyncIterator]();
  input.on("close", () => {
    if (!finished) {
      fail(new Error("standard input was closed"));
    }
  });
  return async (expected) => {
    const { value } = await lines.next();
    if (value !== expected) {
      throw new Error(`expected the line "${expected}", got "${value}"`);
    }
  };
}

function report(phase) {
  process.stdout.write(`${JSON.stringify(phase)}\n`);
}

async function enqueueAll(peer, makeJobs, total) {
  let next = 0;
  const lane = async () => {
    while (next < total) {
      const from = next;
      next = Math.min(total, from + BATCH);
      await peer.enqueue(makeJobs(from, next));
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, lane));
}

async function executeAll(peer, total) {
  let done = 0;
  const reached = Promise.withResolvers();
  await peer.work(() => {
    done += 1;
    if (done === total) {
      reached.resolve();
    }
  });
  await reached.promise;
  while (!(await peer.drained())) {
    await delay(LOOK_EVERY_MS);
  }
}

async function main() {
  const createPeer = await loadPeer(process.argv[2]);
  const { jobs, postgres, redis, streams } = readSettings();
  const { makeJobs, openStreams } = await import("./jobs.mjs");
  const step = readSteps();

  const outbound = await openStreams(redis, streams, fail);
  // A queue would try a failed job again; here it ends the run.
  const execute = (job) => outbound.append(job).catch(fail);
  const peer = createPeer({ postgres, redis, execute, fail });
  await peer.prepare();
  report({ phase: "ready", version: peer.version, node: process.versions.node, settings: peer.settings });

  await step("enqueue");
  await enqueueAll(peer, makeJobs, jobs);
  report({ phase: "enqueued", jobs });

  await step("execute");
  await executeAll(peer, jobs);
  finished = true;
  report({ phase: "executed", jobs });

  await peer.close();
  await outbound.close();
  process.exit(0);
}

process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
main().catch(fail);
