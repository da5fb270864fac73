//! One chunk of routes: leases, appends with receipts, completions. Every step is tried until it is answered.

use super::*;

/// One pass over one chunk: what is known of each route so far.
struct Chunk {
    token: LeaseToken,
    published: Vec<Published>,
    failed: Vec<Failed>,
}

impl<R, L, O, C, J, T> RoutePublisher<R, L, O, C, J, T>
where
    R: RouteStore,
    L: LeaseStore,
    O: Outbound,
    C: Clock,
    J: Jitter,
    T: Tokens,
{
    pub(super) async fn publish(
        &self,
        parcel: Parcel,
        scan: &mut Scan,
        inbox: &Inbox,
        trouble: &mut Trouble,
        stop: &CancellationToken,
    ) -> Result<(), Stopped> {
        let mut context = Context { inbox, trouble, stop };
        let mut routes = parcel.routes.into_iter().peekable();
        while routes.peek().is_some() {
            let mut chunk = Chunk { token: self.token(), published: Vec::new(), failed: Vec::new() };
            let mut entries: Vec<(LiveRoute, OutboundEntry)> = Vec::new();
            let mut bytes = 0;
            while let Some(route) = routes.peek() {
                let encoded = outbound::encode(route);
                let size = encoded.as_ref().map_or(0, OutboundEntry::size);
                if entries.len() + chunk.failed.len() >= self.settings.batch_size
                    || (bytes > 0 && bytes + size > CHUNK_BYTES)
                {
                    break;
                }
                bytes += size;
                // Cannot fail: it was just peeked at.
                let route = routes.next().expect("the route is there");
                match encoded {
                    Ok(entry) => entries.push((route, entry)),
                    Err(error) => {
                        let failed = self.failed(&route, PAYLOAD_ENCODING_FAILED, error.to_string());
                        chunk.failed.push(failed);
                    }
                }
            }
            self.publish_chunk(entries, parcel.read_at, chunk, scan, &mut context).await?;
        }
        Ok(())
    }

    #[tracing::instrument(target = "notification::spans", level = "info", name = "publish", skip_all,
        fields(channel = self.channel.as_str(), routes = entries.len()))]
    async fn publish_chunk(
        &self,
        entries: Vec<(LiveRoute, OutboundEntry)>,
        read_at: Instant,
        mut chunk: Chunk,
        scan: &mut Scan,
        context: &mut Context<'_>,
    ) -> Result<(), Stopped> {
        let mut won = self.win_leases(entries, &mut chunk, context).await?;
        // Its receipt could have run out since the route was read, so ask again whether it is still to be done.
        if read_at.elapsed() + REREAD_MARGIN.min(self.settings.dedupe_ttl / 2) > self.settings.dedupe_ttl {
            won = self.read_again(won, &chunk, context).await?;
        }
        self.append(won, &mut chunk, context).await?;
        let retry_at = chunk.failed.iter().filter_map(|failed| failed.retry_at).min();
        self.complete(chunk, context).await?;
        if let Some(at) = retry_at {
            scan.no_later_than(Instant::now() + at.saturating_since(self.clock.now()));
        }
        Ok(())
    }

    /// Takes the leases of a chunk. Those that somebody else holds are left to them; a receipt is as good as an append.
    async fn win_leases(
        &self,
        entries: Vec<(LiveRoute, OutboundEntry)>,
        chunk: &mut Chunk,
        context: &mut Context<'_>,
    ) -> Result<Vec<(LiveRoute, OutboundEntry)>, Stopped> {
        if entries.is_empty() {
            return Ok(entries);
        }
        let keys: Vec<RouteKey> = entries.iter().map(|(route, _)| route.key.clone()).collect();
        let token = chunk.token.clone();
        let leases = self
            .persist(context, || self.leases.acquire_leases(&keys, &token, self.settings.lease_ttl))
            .await?;
        let mut won = Vec::with_capacity(entries.len());
        let mut held = 0;
        for ((route, entry), lease) in entries.into_iter().zip(leases) {
            match lease {
                Lease::Won => won.push((route, entry)),
                Lease::Held => held += 1,
                Lease::Published(entry_id) => chunk.published.push(published(&route, entry_id)),
            }
        }
        self.metrics.contended(self.channel, held);
        self.status.asked_for_leases(keys.len(), held);
        Ok(won)
    }

    /// Keeps of the routes those that are still live, at their present version.
    async fn read_again(
        &self,
        won: Vec<(LiveRoute, OutboundEntry)>,
        chunk: &Chunk,
        context: &mut Context<'_>,
    ) -> Result<Vec<(LiveRoute, OutboundEntry)>, Stopped> {
        let keys: Vec<RouteKey> = won.iter().map(|(route, _)| route.key.clone()).collect();
        let page = self.persist(context, || self.routes.get_live_routes(&keys)).await?;
        let mut now: HashMap<RouteKey, LiveRoute> =
            page.routes.into_iter().map(|route| (route.key.clone(), route)).collect();
        let (fresh, gone): (Vec<_>, Vec<_>) =
            won.into_iter().partition(|(route, _)| now.contains_key(&route.key));
        self.release(gone.iter().map(|(route, _)| route.key.clone()).collect(), &chunk.token).await;
        let fresh = fresh.into_iter().filter_map(|(route, _)| now.remove(&route.key));
        Ok(fresh.filter_map(|route| outbound::encode(&route).ok().map(|entry| (route, entry))).collect())
    }

    /// Appends what was won. What Redis is in no state to append is tried again, under the same token.
    async fn append(
        &self,
        won: Vec<(LiveRoute, OutboundEntry)>,
        chunk: &mut Chunk,
        context: &mut Context<'_>,
    ) -> Result<(), Stopped> {
        let mut routes: HashMap<RouteKey, LiveRoute> = HashMap::with_capacity(won.len());
        let mut entries: Vec<(RouteKey, OutboundEntry)> = Vec::with_capacity(won.len());
        for (route, entry) in won {
            entries.push((route.key.clone(), entry));
            routes.insert(route.key.clone(), route);
        }
        while !entries.is_empty() {
            let token = chunk.token.clone();
            let appends = self
                .persist(context, || {
                    self.outbound.append(self.channel, &entries, &token, self.settings.dedupe_ttl)
                })
                .await?;
            let now = self.clock.now();
            let mut again = Vec::new();
            let mut outage = None;
            let mut lost = 0;
            for ((key, entry), append) in entries.into_iter().zip(appends) {
                let route = &routes[&key];
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
                        again.push((key, entry));
                    }
                }
            }
            self.metrics.attempts(self.channel, "lease_lost", lost);
            entries = again;
            if let Some(message) = outage {
                let error = StoreError::Unavailable {
                    operation: "append to the outbound stream",
                    source: message.into(),
                };
                self.stall(context.inbox, context.trouble, context.stop, &error).await;
                if context.stop.is_cancelled() {
                    return Err(Stopped);
                }
            }
        }
        Ok(())
    }

    /// Writes down in SQL what happened, however long that takes.
    async fn complete(&self, chunk: Chunk, context: &mut Context<'_>) -> Result<(), Stopped> {
        let now = self.clock.now();
        if !chunk.published.is_empty() {
            let swaps = self.complete_published(&chunk.published, now, context).await?;
            self.metrics.attempts(self.channel, "published", count(&swaps, Swap::Applied));
            self.metrics.conflicts(self.channel, count(&swaps, Swap::Conflict));
        }
        if !chunk.failed.is_empty() {
            let swaps =
                self.persist(context, || self.routes.complete_routes_failed(&chunk.failed, now)).await?;
            self.report_failures(&chunk.failed, &swaps);
            self.release(chunk.failed.into_iter().map(|failed| failed.key).collect(), &chunk.token).await;
        }
        Ok(())
    }

    /// While the completions cannot be committed, their receipts must not run out.
    async fn complete_published(
        &self,
        published: &[Published],
        now: Timestamp,
        context: &mut Context<'_>,
    ) -> Result<Vec<Swap>, Stopped> {
        let mut receipts_renewed = Instant::now();
        loop {
            match self.routes.complete_routes_published(published, now).await {
                Ok(swaps) => {
                    self.works(context.inbox, context.trouble);
                    return Ok(swaps);
                }
                Err(error) => self.stall(context.inbox, context.trouble, context.stop, &error).await,
            }
            if context.stop.is_cancelled() {
                return Err(Stopped);
            }
            if receipts_renewed.elapsed() > self.settings.dedupe_ttl / 3 {
                let receipts: Vec<(RouteKey, String)> =
                    published.iter().map(|route| (route.key.clone(), route.entry_id.clone())).collect();
                self.persist(context, || self.leases.extend_receipts(&receipts, self.settings.dedupe_ttl))
                    .await?;
                receipts_renewed = Instant::now();
            }
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
    async fn release(&self, keys: Vec<RouteKey>, token: &LeaseToken) {
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.leases.release_leases(&keys, token).await {
            tracing::debug!(
                error = error_chain(&error),
                "leases were not released and run out by themselves"
            );
        }
    }

    /// Calls until it is answered or the service stops.
    async fn persist<V, F: Future<Output = Result<V, StoreError>>>(
        &self,
        context: &mut Context<'_>,
        mut call: impl FnMut() -> F,
    ) -> Result<V, Stopped> {
        loop {
            match call().await {
                Ok(value) => {
                    self.works(context.inbox, context.trouble);
                    return Ok(value);
                }
                Err(error) => self.stall(context.inbox, context.trouble, context.stop, &error).await,
            }
            if context.stop.is_cancelled() {
                return Err(Stopped);
            }
        }
    }

    fn token(&self) -> LeaseToken {
        LeaseToken(self.tokens.next().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// What every step of a chunk needs besides the chunk.
struct Context<'a> {
    inbox: &'a Inbox,
    trouble: &'a mut Trouble,
    stop: &'a CancellationToken,
}

fn published(route: &LiveRoute, entry_id: String) -> Published {
    Published { key: route.key.clone(), version: route.version, entry_id }
}

fn count(swaps: &[Swap], wanted: Swap) -> usize {
    swaps.iter().filter(|swap| **swap == wanted).count()
}
