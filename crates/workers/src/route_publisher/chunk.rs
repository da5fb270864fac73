//! One chunk of routes: leases, appends with receipts, completions. Every step is tried until it is answered.

use super::*;

/// One pass over one chunk: what is known of each route so far.
struct Chunk<'a> {
    token: LeaseToken,
    published: Vec<Published<'a>>,
    failed: Vec<Failed>,
}

/// Routes with what is to be appended for them.
type Entries<'a> = Vec<(&'a LiveRoute, OutboundEntry<'a>)>;

impl<R, L, O, C, J, T> RoutePublisher<R, L, O, C, J, T>
where
    R: RouteStore,
    L: LeaseStore,
    O: Outbound,
    C: Clock,
    J: Jitter,
    T: Tokens,
{
    pub(super) async fn publish(&self, parcel: Parcel, desk: &Desk) -> Result<(), Stopped> {
        let mut routes = &parcel.routes[..];
        while !routes.is_empty() {
            let mut chunk = Chunk { token: self.token(), published: Vec::new(), failed: Vec::new() };
            let mut entries: Entries<'_> = Vec::with_capacity(routes.len().min(self.settings.batch_size));
            let mut bytes = 0;
            for route in routes.iter().take(self.settings.batch_size) {
                match outbound::encode(route) {
                    Ok(entry) => {
                        let size = entry.size();
                        if bytes > 0 && bytes + size > CHUNK_BYTES {
                            break;
                        }
                        bytes += size;
                        entries.push((route, entry));
                    }
                    Err(error) => {
                        chunk.failed.push(self.failed(route, PAYLOAD_ENCODING_FAILED, error.to_string()));
                    }
                }
            }
            routes = &routes[entries.len() + chunk.failed.len()..];
            self.publish_chunk(entries, parcel.read_at, chunk, desk).await?;
        }
        Ok(())
    }

    #[tracing::instrument(target = "notification::spans", level = "info", name = "publish", skip_all,
        fields(channel = self.channel.as_str(), routes = entries.len()))]
    async fn publish_chunk(
        &self,
        entries: Entries<'_>,
        read_at: Instant,
        chunk: Chunk<'_>,
        desk: &Desk,
    ) -> Result<(), Stopped> {
        // Before the chunk, so that it lives longer.
        let anew;
        let mut chunk = chunk;
        let mut won = self.win_leases(entries, &mut chunk, desk).await?;
        // Somebody's receipt of it could have run out since the route was read, and it may have been half as old already: ask
        // again whether it is still to be done.
        if read_at.elapsed() > self.settings.dedupe_ttl / 2 {
            anew = self.read_again(&won, &chunk.token, desk).await?;
            won = anew
                .iter()
                .filter_map(|route| outbound::encode(route).ok().map(|entry| (route, entry)))
                .collect();
        }
        self.append(won, &mut chunk, desk).await?;
        let retry_at = chunk.failed.iter().filter_map(|failed| failed.retry_at).min();
        self.complete(chunk, desk).await?;
        if let Some(at) = retry_at {
            desk.scan().no_later_than(Instant::now() + at.saturating_since(self.clock.now()));
        }
        Ok(())
    }

    /// Takes the leases of a chunk. Those that somebody else holds are left to them; a receipt is as good as an append.
    async fn win_leases<'a>(
        &self,
        entries: Entries<'a>,
        chunk: &mut Chunk<'a>,
        desk: &Desk,
    ) -> Result<Entries<'a>, Stopped> {
        if entries.is_empty() {
            return Ok(entries);
        }
        let keys = keys_of(&entries);
        let leases = self
            .persist(desk, || self.leases.acquire_leases(&keys, &chunk.token, self.settings.lease_ttl))
            .await?;
        let mut won = Vec::with_capacity(entries.len());
        let mut held = 0;
        for ((route, entry), lease) in entries.into_iter().zip(leases) {
            match lease {
                Lease::Won => won.push((route, entry)),
                Lease::Held => held += 1,
                Lease::Published(entry_id) => chunk.published.push(published(route, entry_id)),
            }
        }
        self.metrics.contended(self.channel, held);
        self.status.asked_for_leases(keys.len(), held);
        Ok(won)
    }

    /// Those of the routes that are still live, at their present version.
    async fn read_again(
        &self,
        won: &Entries<'_>,
        token: &LeaseToken,
        desk: &Desk,
    ) -> Result<Vec<LiveRoute>, Stopped> {
        let mut keys = keys_of(won);
        let live = self.persist(desk, || self.routes.get_live_routes(&keys)).await?.routes;
        let still: HashSet<&RouteKey> = live.iter().map(|route| &route.key).collect();
        keys.retain(|key| !still.contains(key));
        self.release(&keys, token).await;
        Ok(live)
    }

    /// Appends what was won. What Redis is in no state to append is tried again, under the same token.
    async fn append<'a>(
        &self,
        mut entries: Entries<'a>,
        chunk: &mut Chunk<'a>,
        desk: &Desk,
    ) -> Result<(), Stopped> {
        while !entries.is_empty() {
            let given: Vec<_> = entries.iter().map(|(route, entry)| (&route.key, entry)).collect();
            let appends = self
                .persist(desk, || {
                    self.outbound.append(self.channel, &given, &chunk.token, self.settings.dedupe_ttl)
                })
                .await?;
            let now = self.clock.now();
            let mut again = Vec::new();
            let mut outage = None;
            let mut lost = 0;
            for ((route, entry), append) in entries.into_iter().zip(appends) {
                match append {
                    Append::Done(entry_id) => {
                        let latency = now.saturating_since(route.content.accepted_at);
                        self.metrics.published_after(self.channel, latency);
                        chunk.published.push(published(route, entry_id));
                    }
                    Append::LeaseLost => lost += 1,
                    Append::Refused(message) => {
                        chunk.failed.push(self.failed(route, self.channel.publish_failed(), message));
                    }
                    Append::Outage(message) => {
                        outage = Some(message);
                        again.push((route, entry));
                    }
                }
            }
            self.metrics.attempts(self.channel, "lease_lost", lost);
            self.status.asked_for_leases(0, lost);
            entries = again;
            if let Some(message) = outage {
                let error = StoreError::Unavailable {
                    operation: "append to the outbound stream",
                    source: message.into(),
                };
                self.stall(desk, &error).await;
                if desk.stop.is_cancelled() {
                    return Err(Stopped);
                }
            }
        }
        Ok(())
    }

    /// Writes down in SQL what happened, however long that takes.
    async fn complete(&self, chunk: Chunk<'_>, desk: &Desk) -> Result<(), Stopped> {
        let now = self.clock.now();
        if !chunk.published.is_empty() {
            let swaps = self.complete_published(&chunk.published, now, desk).await?;
            self.metrics.attempts(self.channel, "published", count(&swaps, Swap::Applied));
            self.metrics.conflicts(self.channel, count(&swaps, Swap::Conflict));
        }
        if !chunk.failed.is_empty() {
            let swaps = self.persist(desk, || self.routes.complete_routes_failed(&chunk.failed, now)).await?;
            self.report_failures(&chunk.failed, &swaps);
            let keys: Vec<&RouteKey> = chunk.failed.iter().map(|failed| &failed.key).collect();
            self.release(&keys, &chunk.token).await;
        }
        Ok(())
    }

    /// Completes in halves what is refused as a whole: what is refused by itself harms no other and is left to the scan.
    async fn complete_published(
        &self,
        published: &[Published<'_>],
        now: Timestamp,
        desk: &Desk,
    ) -> Result<Vec<Swap>, Stopped> {
        let mut swaps = Vec::with_capacity(published.len());
        let mut parts = vec![published];
        while let Some(part) = parts.pop() {
            match (self.commit_published(part, now, desk).await?, part) {
                (Ok(done), _) => swaps.extend(done),
                (Err(error), [route]) => self.report_refused(desk, route.key, &error),
                (Err(_), _) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        Ok(swaps)
    }

    /// Tries until the completions are committed or refused. Meanwhile their receipts must not run out.
    async fn commit_published(
        &self,
        published: &[Published<'_>],
        now: Timestamp,
        desk: &Desk,
    ) -> Result<Result<Vec<Swap>, StoreError>, Stopped> {
        let mut receipts_renewed = Instant::now();
        loop {
            match self.routes.complete_routes_published(published, now).await {
                Ok(swaps) => {
                    self.works(desk);
                    return Ok(Ok(swaps));
                }
                Err(refused @ StoreError::Refused { .. }) => return Ok(Err(refused)),
                Err(error) => self.stall(desk, &error).await,
            }
            if desk.stop.is_cancelled() {
                return Err(Stopped);
            }
            if receipts_renewed.elapsed() > self.settings.dedupe_ttl / 3 {
                let receipts: Vec<_> =
                    published.iter().map(|done| (done.key, done.entry_id.as_str())).collect();
                self.persist(desk, || self.leases.extend_receipts(&receipts, self.settings.dedupe_ttl))
                    .await?;
                receipts_renewed = Instant::now();
            }
        }
    }

    /// Says of a route that its completion is refused, once.
    fn report_refused(&self, desk: &Desk, key: &RouteKey, error: &StoreError) {
        let error = error_chain(error);
        if desk.scan().is_news(&format!("{key}: {error}")) {
            tracing::error!(channel = self.channel.as_str(), notification_id = %key.notification_id,
                route_id = key.loggable_route_id(), error,
                "a published route cannot be completed and waits until somebody mends the row");
        }
    }

    fn report_failures(&self, failed: &[Failed], swaps: &[Swap]) {
        self.metrics.conflicts(self.channel, count(swaps, Swap::Conflict));
        let applied =
            failed.iter().zip(swaps).filter(|(_, swap)| **swap == Swap::Applied).map(|(failed, _)| failed);
        let (mut retried, mut dead) = (0, 0);
        for route in applied {
            let result = if route.retry_at.is_some() { "failed" } else { "dead_letter" };
            *(if route.retry_at.is_some() { &mut retried } else { &mut dead }) += 1;
            tracing::warn!(channel = self.channel.as_str(), notification_id = %route.key.notification_id, route_id = route.key.loggable_route_id(),
                attempt = route.attempt_count, result, classification = route.classification, error = route.message,
                "an attempt to publish failed");
        }
        self.metrics.attempts(self.channel, "failed", retried);
        self.metrics.attempts(self.channel, "dead_letter", dead);
    }

    fn failed(&self, route: &LiveRoute, classification: &'static str, message: String) -> Failed {
        let after = route.after_failure(self.clock.now(), &self.settings.backoff, self.jitter.fraction());
        let (attempt_count, retry_at) = match after {
            AfterFailure::Retry { attempt_count, at } => (attempt_count, Some(at)),
            AfterFailure::DeadLetter { attempt_count } => (attempt_count, None),
        };
        Failed {
            key: route.key.clone(),
            version: route.version,
            channel: self.channel,
            attempt_count,
            retry_at,
            classification,
            message,
        }
    }

    /// Gives leases back early. That saves others the wait for their end, and no more.
    async fn release(&self, keys: &[&RouteKey], token: &LeaseToken) {
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.leases.release_leases(keys, token).await {
            tracing::debug!(
                error = error_chain(&error),
                "leases were not released and run out by themselves"
            );
        }
    }

    /// Calls until it is answered or the service stops.
    async fn persist<V, F: Future<Output = Result<V, StoreError>>>(
        &self,
        desk: &Desk,
        mut call: impl FnMut() -> F,
    ) -> Result<V, Stopped> {
        loop {
            match call().await {
                Ok(value) => {
                    self.works(desk);
                    return Ok(value);
                }
                Err(error) => self.stall(desk, &error).await,
            }
            if desk.stop.is_cancelled() {
                return Err(Stopped);
            }
        }
    }
}

fn published(route: &LiveRoute, entry_id: String) -> Published<'_> {
    Published { key: &route.key, version: route.version, entry_id }
}

fn keys_of<'a>(entries: &Entries<'a>) -> Vec<&'a RouteKey> {
    entries.iter().map(|(route, _)| &route.key).collect()
}

fn count(swaps: &[Swap], wanted: Swap) -> usize {
    swaps.iter().filter(|swap| **swap == wanted).count()
}
