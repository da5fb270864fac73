import { Logger, makeWorkerUtils, run } from "graphile-worker";

import { versionOf } from "./installed.mjs";

const TASK = "push";
const WORKER = { concurrentJobs: 100, localQueue: { size: 2000 }, completeJobBatchDelay: 0 };

export function graphileWorker({ postgres, execute, fail }) {
  // The library's own logger writes a line for each job to standard output, which carries the protocol.
  const logger = new Logger(() => (level, message) => {
    if (level === "error") {
      fail(new Error(message));
    }
  });
  const preset = { worker: { connectionString: postgres, logger, ...WORKER } };
  let utils;
  let runner;

  return {
    version: versionOf("graphile-worker"),
    settings: "concurrentJobs 100, localQueue.size 2000, completeJobBatchDelay 0; addJobs",

    async prepare() {
      utils = await makeWorkerUtils({ preset });
      await utils.migrate();
    },

    async enqueue(jobs) {
      await utils.addJobs(jobs.map((payload) => ({ identifier: TASK, payload })));
    },

    async work(onDone) {
      const push = async (job) => {
        await execute(job);
        onDone();
      };
      runner = await run({ preset, noHandleSignals: true, taskList: { [TASK]: push }, parsedCronItems: [] });
      runner.promise.catch(fail);
    },

    async drained() {
      const { rows } = await utils.withPgClient((client) =>
        client.query("SELECT NOT EXISTS (SELECT 1 FROM graphile_worker.jobs) AS drained"),
      );
      return rows[0].drained;
    },

    async close() {
      await runner.stop();
      await utils.release();
    },
  };
}
