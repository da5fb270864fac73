import { PgBoss } from "pg-boss";

import { versionOf } from "./installed.mjs";

const QUEUE = "push";
const WORKER = { batchSize: 2000, localConcurrency: 2, burstWhenBatchFull: true };
const DRAINED = "SELECT NOT EXISTS (SELECT 1 FROM pgboss.job WHERE name = $1 AND state <> 'completed') AS drained";

export function pgBoss({ postgres, execute, fail }) {
  const boss = new PgBoss(postgres);
  boss.on("error", fail);

  return {
    version: versionOf("pg-boss"),
    settings: "batchSize 2000, localConcurrency 2, burstWhenBatchFull; insert",

    async prepare() {
      await boss.start();
      await boss.createQueue(QUEUE);
    },

    async enqueue(jobs) {
      await boss.insert(
        QUEUE,
        jobs.map((data) => ({ data })),
      );
    },

    async work(onDone) {
      const push = async (job) => {
        await execute(job.data);
        onDone();
      };
      await boss.work(QUEUE, WORKER, async (jobs) => {
        await Promise.all(jobs.map(push));
      });
    },

    async drained() {
      const { rows } = await boss.getDb().executeSql(DRAINED, [QUEUE]);
      return rows[0].drained;
    },

    async close() {
      await boss.stop();
    },
  };
}
