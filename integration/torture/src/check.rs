//! The promises, checked when a case has settled.

use std::collections::{BTreeMap, BTreeSet};

use harness::world::{INTENTS, MAIL, PUSH, World};
use redis::streams::StreamRangeReply;

/// The state to which a case must have led.
#[derive(Debug)]
pub(crate) struct Expected {
    /// The idempotency keys of all intents, each with `true` if it must be accepted.
    pub(crate) keys: BTreeMap<String, bool>,
    /// The keys of the intents whose client events were sent again.
    pub(crate) resent: BTreeSet<String>,
    /// True if an operator's request may be carried out twice: PostgreSQL lost the first time, or the clocks
    /// of the replicas differ.
    pub(crate) may_resend_twice: bool,
    /// True if PostgreSQL lost its last commits, and so may know less than the streams.
    pub(crate) postgres_lost: bool,
}

/// A published route.
struct Published {
    key: String,
    id: String,
    entry_id: String,
    attempts: i64,
}

impl Expected {
    /// Returns the first promise that does not hold, or not yet, as an error.
    pub(crate) async fn check(&self, world: &World) -> Result<(), String> {
        settled(world).await?;
        let accepted = self.accepted(world).await?;
        let published = published(world).await?;
        if published.len() != accepted.len() * 4 {
            return Err(format!("{} records have {} published routes", accepted.len(), published.len()));
        }
        let entries = entries(world).await?;
        for route in &published {
            self.check_entries(route, entries.get(&route.id).map_or(&[], Vec::as_slice))?;
        }
        let ids: BTreeSet<&str> = published.iter().map(|route| route.id.as_str()).collect();
        match entries.keys().find(|id| !self.postgres_lost && !ids.contains(id.as_str())) {
            Some(id) => Err(format!("the entry {id} has no route")),
            None => Ok(()),
        }
    }

    /// The keys of the accepted intents: all that must be there, and no other.
    async fn accepted(&self, world: &World) -> Result<BTreeSet<String>, String> {
        let rows = query(world, "SELECT idempotency_key, producer FROM records").await?;
        if rows.iter().any(|row| row.get::<_, &str>(1) == "old") {
            return Err("old records are kept".to_owned());
        }
        let accepted: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
        if let Some((key, _)) = self.keys.iter().find(|(key, is_kept)| **is_kept && !accepted.contains(*key))
        {
            return Err(format!("the intent {key} was acknowledged and is not accepted"));
        }
        match accepted.iter().find(|key| !self.keys.contains_key(*key)) {
            Some(key) => Err(format!("the intent {key} was never sent")),
            None => Ok(accepted),
        }
    }

    fn check_entries(&self, route: &Published, found: &[String]) -> Result<(), String> {
        let Published { key, id, entry_id, attempts } = route;
        let is_resent = self.resent.contains(key) && id.contains("/push:");
        let (most_entries, most_attempts) = match (is_resent, self.may_resend_twice) {
            (false, _) => (1, 0),
            (true, false) => (2, 1),
            (true, true) => (3, 2),
        };
        let least_entries = if is_resent { 2 } else { 1 };
        if !(least_entries..=most_entries).contains(&found.len()) || !found.contains(entry_id) {
            return Err(format!("the route {id} was published as {entry_id}, and its entries are {found:?}"));
        }
        if *attempts > most_attempts {
            return Err(format!("an outage cost the route {id} an attempt"));
        }
        Ok(())
    }
}

/// Checks that no route is live and that intake is at the end of its stream.
async fn settled(world: &World) -> Result<(), String> {
    let sql =
        "SELECT (SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL), last_entry_id FROM intake";
    let rows = query(world, sql).await?;
    let row = rows.first().ok_or("there is no checkpoint")?;
    let (live, checkpoint): (i64, String) = (row.get(0), row.get(1));
    let last: StreamRangeReply = ask(world, &["XREVRANGE", INTENTS, "+", "-", "COUNT", "1"]).await?;
    let last = last.ids.first().map_or("0-0", |entry| entry.id.as_str());
    if live > 0 || checkpoint != last {
        return Err(format!("{live} routes are live, and intake is at {checkpoint} of {last}"));
    }
    Ok(())
}

/// All routes, each of which must be published.
async fn published(world: &World) -> Result<Vec<Published>, String> {
    let sql = "SELECT idempotency_key, notification_id || '/' || route_id, coalesce(published_entry_id, ''),
            attempt_count::bigint, status
        FROM records JOIN routes USING (notification_id)";
    let route = |row: &tokio_postgres::Row| {
        let route = Published { key: row.get(0), id: row.get(1), entry_id: row.get(2), attempts: row.get(3) };
        match row.get(4) {
            "published" => Ok(route),
            other => Err(format!("the route {} is {other}", route.id)),
        }
    };
    query(world, sql).await?.iter().map(route).collect()
}

/// The ids by which consumers deduplicate, with the stream ids of all entries that carry them.
async fn entries(world: &World) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (stream, field) in [(PUSH, "event_id"), (MAIL, "delivery_id")] {
        let range: StreamRangeReply = ask(world, &["XRANGE", stream, "-", "+"]).await?;
        for entry in range.ids {
            let id = entry.get(field).ok_or_else(|| format!("the entry {} has no {field}", entry.id))?;
            found.entry(id).or_default().push(entry.id);
        }
    }
    Ok(found)
}

async fn query(world: &World, sql: &str) -> Result<Vec<tokio_postgres::Row>, String> {
    world.database.client().await.query(sql, &[]).await.map_err(|error| format!("{sql}: {error}"))
}

async fn ask(world: &World, words: &[&str]) -> Result<StreamRangeReply, String> {
    world.redis.ask(words).await.map_err(|error| format!("{words:?}: {error}"))
}
