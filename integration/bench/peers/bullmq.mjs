import { Queue, Worker } from "bullmq";

import { versionOf } from "./installed.mjs";
import { connectRedis } from "./jobs.mjs";

const QUEUE = "push";

export function bullmq({ redis, execute, fail }) {
  let connection;
  let queue;
  let worker;

  return {
    version: versionOf("bullmq"),
    settings: "concurrency 200, removeOnComplete; addBulk",

    async prepare() {
      // BullMQ wants null here: its workers wait for a job in a blocking command.
      connection = await connectRedis(redis, { maxRetriesPerRequest: null }, fail);
      queue = new Queue(QUEUE, { connection, defaultJobOptions: { removeOnComplete: true } });
      queue.on("error", fail);
      await queue.waitUntilReady();
    },

    async enqueue(jobs) {
      await queue.addBulk(jobs.map((data) => ({ name: QUEUE, data })));
    },

    async work(onDone) {
      const push = async (job) => {
        await execute(job.data);
        onDone();
      };
      worker = new Worker(QUEUE, push, { connection, concurrency: 200 });
      worker.on("error", fail);
      await worker.waitUntilReady();
    },

    async drained() {
      const counts = await queue.getJobCounts("waiting", "active");
      return counts.waiting === 0 && counts.active === 0;
    },

    async close() {
      await worker.close();
      await queue.close();
      await connection.quit();
    },
  };
}
