import Redis from "ioredis";

const GAME_NAME = "Nebula ".repeat(28).trim();

/** Job `n`: what a push route carries. Four routes make a notification. */
export function makeJob(n) {
  const notification = Math.floor(n / 4);
  const user = `user-${n % 500}`;
  const notificationId = `1775121700000-${notification}`;
  const routeId = `push:user:${user}`;
  return {
    event_id: `${notificationId}/${routeId}`,
    event_type: "game.turn.ready",
    user_id: user,
    notification_id: notificationId,
    route_id: routeId,
    payload_json: JSON.stringify({
      game_id: `game-${notification % 1000}`,
      game_name: GAME_NAME,
      turn_number: notification,
    }),
    occurred_at_ms: "1775121700000",
    attempt: "1",
    request_id: `request-${notification}`,
  };
}

export function makeJobs(from, to) {
  return Array.from({ length: to - from }, (_, i) => makeJob(from + i));
}

/** A connection that never reconnects: in a benchmark a lost server is an error. */
export async function connectRedis(address, options, fail) {
  const client = new Redis(`redis://${address}`, { ...options, lazyConnect: true, retryStrategy: () => null });
  client.on("error", (error) => fail(new Error(`Redis at ${address}: ${error.message}`)));
  await client.connect();
  return client;
}

/** The outbound stream. Appending to it is what executing a job means. */
export async function openStream(address, key, fail) {
  const client = await connectRedis(address, { enableAutoPipelining: true }, fail);
  return {
    append: (job) =>
      client.xadd(
        key,
        "*",
        "event_id",
        job.event_id,
        "event_type",
        job.event_type,
        "user_id",
        job.user_id,
        "notification_id",
        job.notification_id,
        "route_id",
        job.route_id,
        "payload_json",
        job.payload_json,
        "occurred_at_ms",
        job.occurred_at_ms,
        "attempt",
        job.attempt,
        "request_id",
        job.request_id,
      ),
    close: () => client.quit(),
  };
}
