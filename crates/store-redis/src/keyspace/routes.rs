//! The keys of routes: leases, and the hashes of the markers of routes that were appended under a permit.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::entry::EntryId;
use domain::ports::StoreError;
use domain::route::RouteKey;

use super::{Keyspace, OldKey, ROUTE_LEASES, ROUTE_MARKERS, tagged};
use crate::connect::RedisClient;

/// The time for which routes have their markers in the same hash, in milliseconds of their notification ids.
const HASH_MILLIS: u64 = 250;
/// The entries of one millisecond whose routes have their markers in the same hash. While the clock of Redis
/// is behind the last id of a stream, all new ids are of one millisecond.
const HASH_ENTRIES: u64 = 4_096;
/// The most leases in one run: a Lua call has at most 8,000 arguments, and a marker takes two.
const MAX_RUN: usize = 1_000;

/// The keys of routes, for a script with markers.
pub(crate) struct RouteKeys {
    /// The leases; then, if they are used, their old names; then the hashes of the markers.
    pub(crate) names: Vec<String>,
    /// The first argument of the script: the number of leases that belong to each hash.
    pub(crate) runs: String,
}

/// Consecutive routes whose markers are in one hash.
struct MarkerRun {
    hash: String,
    time: (u64, u64),
    length: usize,
}

impl Keyspace {
    /// The key of a route's lease, and of its published marker.
    // MODEL-19
    pub fn route_lease(&self, route: &RouteKey) -> OldKey {
        let tag = tagged(self.outbound(route.channel()));
        OldKey { key: self.lease_name(&tag, route), old: self.lease_name("", route) }
    }

    /// The keys of these routes of one channel that a script with markers uses.
    pub(crate) async fn route_keys<'a>(
        &self,
        client: &RedisClient,
        routes: impl Iterator<Item = &'a RouteKey> + Clone,
    ) -> Result<RouteKeys, StoreError> {
        let mut names = self.lease_names(client, routes.clone()).await?;
        let (hashes, runs) = self.marker_hashes(routes);
        names.extend(hashes);
        Ok(RouteKeys { names, runs })
    }

    /// The names of the leases of these routes of one channel that a script uses: their keys, then, if they
    /// are used, their old names.
    pub(crate) async fn lease_names<'a>(
        &self,
        client: &RedisClient,
        routes: impl Iterator<Item = &'a RouteKey> + Clone,
    ) -> Result<Vec<String>, StoreError> {
        let Some(first) = routes.clone().next() else { return Ok(Vec::new()) };
        let tag = tagged(self.outbound(first.channel()));
        let mut names: Vec<String> = routes.clone().map(|route| self.lease_name(&tag, route)).collect();
        if self.uses_old_names(client).await? {
            names.extend(routes.map(|route| self.lease_name("", route)));
        }
        Ok(names)
    }

    /// The name of a lease with this hash tag, or without one. A chunk needs hundreds, so each is written
    /// into one piece of memory.
    fn lease_name(&self, tag: &str, route: &RouteKey) -> String {
        let (id, route_id) = (route.notification_id.as_str(), &route.route_id);
        let encoded = (id.len() + route_id.len()) * 4 / 3 + 4;
        let length = ROUTE_LEASES.len() + tag.len() + self.installation.len() + encoded;
        let mut name = String::with_capacity(length);
        for part in [ROUTE_LEASES, tag, &self.installation] {
            name.push_str(part);
        }
        URL_SAFE_NO_PAD.encode_string(id, &mut name);
        name.push(':');
        URL_SAFE_NO_PAD.encode_string(route_id, &mut name);
        name
    }

    /// The keys of the hashes of markers of these routes of one channel, and the lengths of the runs of
    /// consecutive routes that belong to one hash each.
    fn marker_hashes<'a>(&self, routes: impl Iterator<Item = &'a RouteKey>) -> (Vec<String>, String) {
        let mut runs: Vec<MarkerRun> = Vec::new();
        for route in routes {
            let time = marker_time(route);
            match runs.last_mut() {
                Some(run) if run.time == time && run.length < MAX_RUN => run.length += 1,
                _ => runs.push(MarkerRun { hash: self.marker_hash(route), time, length: 1 }),
            }
        }
        let lengths: Vec<String> = runs.iter().map(|run| run.length.to_string()).collect();
        (runs.into_iter().map(|run| run.hash).collect(), lengths.join(" "))
    }

    /// The key of the hash that has the marker of a route which was appended under a permit.
    pub fn marker_hash(&self, route: &RouteKey) -> String {
        let (time, entries) = marker_time(route);
        let rest = format!("{}{time}-{entries}", self.installation);
        OldKey::new(ROUTE_MARKERS, self.outbound(route.channel()), &rest).key
    }
}

/// The time in the notification id of a route, in units of [`HASH_MILLIS`] and [`HASH_ENTRIES`].
fn marker_time(route: &RouteKey) -> (u64, u64) {
    let EntryId { millis, sequence } = route.notification_id.time();
    (millis / HASH_MILLIS, sequence / HASH_ENTRIES)
}

#[cfg(test)]
mod tests {
    use domain::record::NotificationId;

    use super::*;

    fn at(millis: u64, sequence: u64) -> RouteKey {
        let notification_id = NotificationId::of(EntryId::new(millis, sequence), 0);
        RouteKey { notification_id, route_id: "push:user:a".to_owned() }
    }

    #[test]
    fn markers_of_the_same_time_are_in_one_hash_and_no_run_is_too_long_for_a_call() {
        let hashes_of =
            |routes: &[RouteKey]| Keyspace::new("other:intents", "g", "m").marker_hashes(routes.iter());
        let name = |time: u64| format!("notification:route_markers:{{g}}:b3RoZXI6aW50ZW50cw:{time}-0");
        let (hashes, lengths) = hashes_of(&[at(1_000, 0), at(1_249, 9), at(1_250, 0), at(1_000, 0)]);
        assert_eq!(hashes, [name(4), name(5), name(4)]);
        assert_eq!(lengths, "2 1 1");
        let (hashes, lengths) = hashes_of(&vec![at(7, 0); 2_001]);
        assert_eq!((hashes, lengths.as_str()), (vec![name(0); 3], "1000 1000 1"));
        // A UUIDv7 of 1,250 ms.
        let notification_id = NotificationId::from("00000000-04e2-7000-8000-000000000000".to_owned());
        let http = RouteKey { notification_id, ..at(0, 0) };
        assert_eq!(hashes_of(&[http]).0, [name(5)]);
    }

    #[test]
    fn no_hash_grows_without_bound_while_redis_gives_all_ids_in_one_millisecond() {
        let routes: Vec<RouteKey> = (0..10_000).map(|sequence| at(1_000, sequence)).collect();
        let (mut hashes, _) = Keyspace::default().marker_hashes(routes.iter());
        hashes.dedup();
        assert_eq!(hashes.len(), 3);
    }
}
