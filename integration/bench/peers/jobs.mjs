import Redis from "ioredis";

const GAME_NAME = "Nebula ".repeat(28).trim();

/** Job `n`: what a route carries. Four routes, two of each channel, make a notification. */
export function makeJob(n) {
  const notification = Math.floor(n / 4);
  const user = `user-${n % 500}`;
  const notificationId = `1775121700000-${notification}`;
  const payload = {
    game_id: `game-${notification % 1000}`,
    game_name: GAME_NAME,
    turn_number: notification,
  };
  const requestId = `request-${notification}`;
  return n % 4 < 2 ? pushJob(user, notificationId, payload, requestId) : mailJob(user, notificationId, payload, requestId);
}

function pushJob(user, notificationId, payload, requestId) {
  const routeId = `push:user:${user}`;
  return {
    channel: "push",
    fields: {
      event_id: `${notificationId}/${routeId}`,
      event_type: "game.turn.ready",
      user_id: user,
      notification_id: notificationId,
      route_id: routeId,
      payload_json: JSON.stringify(payload),
      occurred_at_ms: "1775121700000",
      attempt: "1",
      request_id: requestId,
    },
  };
}

function mailJob(user, notificationId, payload, requestId) {
  const deliveryId = `${notificationId}/email:user:${user}`;
  return {
    channel: "mail",
    fields: {
      idempotency_key: `notification:${deliveryId}`,
      delivery_id: deliveryId,
      source: "notification",
      payload_mode: "template",
      requested_at_ms: "1775121700000",
      payload_json: JSON.stringify({
        to: [`${user}@example.com`],
        cc: [],
        bcc: [],
        reply_to: [],
        template_id: "game.turn.ready",
        locale: "en",
        variables: payload,
        attachments: [],
      }),
      request_id: requestId,
    },
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

/** The outbound streams. Appending to one of them is what executing a job means. */
export async function openStreams(address, streams, fail) {
  const client = await connectRedis(address, { enableAutoPipelining: true }, fail);
  return {
    append: ({ channel, fields }) => client.xadd(streams[channel], "*", ...Object.entries(fields).flat()),
    close: () => client.quit(),
  };
}
