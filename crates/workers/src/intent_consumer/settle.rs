//! A batch on its way to its outcomes: what is known of it, what is decided, what is written, who is told.

use super::*;

impl<E, I, A, O, D, C> IntentConsumer<E, I, A, O, D, C>
where
    E: Election,
    I: IntentStream,
    A: AcceptanceStore,
    O: OffsetStore,
    D: UserDirectory,
    C: Clock,
{
    /// Brings a batch to its outcomes. What could not be settled goes back in front of what was read.
    ///
    /// Most keys are new, and a transaction over a key that is taken writes nothing ([`Commit::Raced`]). So nobody looks for
    /// known keys beforehand, unless the batch before had some, or the directory objects to an acceptance: what becomes of a
    /// replay never depends on what the directory says today.
    pub(super) async fn settle(
        &self,
        position: &mut Position,
        batch: Vec<Ahead>,
        stop: &CancellationToken,
    ) -> Result<Pass, StoreError> {
        let mut batch = VecDeque::from(batch);
        let mut look_first = position.look_first;
        let mut races = 0;
        let pass = loop {
            let decoded: Vec<&Decoded> = batch.iter().map(|ahead| &ahead.decoded).collect();
            if decoded.is_empty() {
                break Ok(Pass::Onward);
            }
            // Nothing is lost if the term ends meanwhile: nothing has been written.
            let deciding = stop.run_until_cancelled(self.decide(&decoded, &mut look_first)).await;
            let mut decision = match deciding {
                Some(Ok(decision)) => decision,
                Some(Err(error)) => break Err(error),
                None => break Ok(Pass::Onward),
            };
            let objections = directory_objects(&decoded, &decision);
            position.look_first = objections || decision.settled.contains(&Settled::Duplicate);
            let mut done = 0;
            let written = self.write(position, &decoded, &mut decision.settled, &mut done).await;
            let rest = batch.split_off(done);
            self.finish(&batch, &decision.settled);
            batch = rest;
            match written {
                Ok(Commit::Done) => match decision.wait {
                    Some(wait) if done == decision.settled.len() => break Ok(Pass::Waiting(wait)),
                    Some(_) | None => continue,
                },
                Ok(Commit::Raced) if !look_first => look_first = true,
                Ok(Commit::Raced) if races < RACES => races += 1,
                Ok(Commit::Raced | Commit::Moved) => break Ok(Pass::Lost),
                Err(error) => break Err(error),
            }
        };
        while let Some(ahead) = batch.pop_back() {
            position.ahead.push_front(ahead);
        }
        pass
    }

    async fn find_known(&self, batch: &[&Decoded]) -> Result<Known, StoreError> {
        let asked: Vec<_> = batch
            .iter()
            .filter_map(|decoded| {
                decoded.intent.as_ref().ok().map(|intent| (intent.scope(), decoded.entry.id))
            })
            .collect();
        self.store.find_known(&asked).await
    }

    /// What becomes of each entry. If the directory objects and known keys have not been looked for, `look_first` is set,
    /// they are, and it is decided anew with the same answers.
    async fn decide(
        &self,
        batch: &[&Decoded],
        look_first: &mut bool,
    ) -> Result<accept::Decision, StoreError> {
        let stream = &self.settings.stream;
        let known = if *look_first { self.find_known(batch).await? } else { Known::default() };
        let ids = accept::users_needed(batch, &known);
        let answers = if ids.is_empty() { Vec::new() } else { self.directory.look_up(&ids).await };
        let users: HashMap<&str, Lookup> = ids.into_iter().zip(answers).collect();
        // Read only now: looking up may have taken a while, and acceptance begins here.
        let decision = accept::decide(stream, batch, &known, &users, &self.policy, self.clock.now());
        if *look_first || !directory_objects(batch, &decision) {
            return Ok(decision);
        }
        *look_first = true;
        let known = self.find_known(batch).await?;
        Ok(accept::decide(stream, batch, &known, &users, &self.policy, self.clock.now()))
    }

    /// Commits what was decided, in one transaction if PostgreSQL lets it, else in halves from left to right. `done`
    /// counts the entries that are committed, also when it fails in the middle. Behind an entry that PostgreSQL refused it
    /// ends: what is behind was decided as if that had been accepted.
    async fn write(
        &self,
        position: &mut Position,
        batch: &[&Decoded],
        settled: &mut [Settled],
        done: &mut usize,
    ) -> Result<Commit, StoreError> {
        let mut length = settled.len();
        let mut refused = false;
        while *done < settled.len() && !refused {
            let end = (*done + length).min(settled.len());
            let last_entry_id = batch[end - 1].entry.id;
            let chunk = AcceptanceBatch {
                stream: &self.settings.stream,
                fence: position.fence,
                after: position.progress,
                last_entry_id,
                settled: &settled[*done..end],
            };
            match self.store.accept(chunk).await {
                Ok(Commit::Done) => {
                    self.committed(position, &batch[*done..end], &settled[*done..end], last_entry_id).await;
                    *done = end;
                    refused = matches!(&settled[end - 1], Settled::Malformed(row) if row.rejection.code == FailureCode::NotStorable);
                }
                Ok(Commit::Moved) => {
                    tracing::warn!(
                        stream = self.settings.stream,
                        "the progress in PostgreSQL is not where this intake left it: it looks where to resume"
                    );
                    return Ok(Commit::Moved);
                }
                Ok(Commit::Raced) => return Ok(Commit::Raced),
                Err(StoreError::Refused { .. }) if end - *done > 1 => length = (end - *done) / 2,
                Err(error @ StoreError::Refused { .. }) => {
                    settled[*done] = self.not_storable(batch[*done], &settled[*done], &error)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Commit::Done)
    }

    /// What PostgreSQL refuses for one element alone is malformed, and if it refuses even that, its raw fields are cut.
    fn not_storable(
        &self,
        decoded: &Decoded,
        settled: &Settled,
        error: &StoreError,
    ) -> Result<Settled, StoreError> {
        let message = error_chain(error);
        match settled {
            Settled::Malformed(row) if row.rejection.code == FailureCode::NotStorable => {
                let reduced = row.reduced();
                if reduced == *row {
                    let source =
                        format!("entry {} cannot be written down at all: {message}", decoded.entry.id);
                    return Err(StoreError::Unavailable {
                        operation: "quarantine an entry",
                        source: source.into(),
                    });
                }
                Ok(Settled::Malformed(reduced))
            }
            _ => {
                let rejection = Rejection { code: FailureCode::NotStorable, message };
                let now = self.clock.now();
                Ok(Settled::Malformed(MalformedIntent::new(
                    &self.settings.stream,
                    &decoded.entry,
                    rejection,
                    now,
                )))
            }
        }
    }

    /// After the commit: publishers first, because they are what somebody waits for.
    async fn committed(
        &self,
        position: &mut Position,
        batch: &[&Decoded],
        settled: &[Settled],
        last: EntryId,
    ) {
        let acceptances = settled.iter().filter_map(|outcome| match outcome {
            Settled::Accepted(acceptance) => Some(acceptance),
            Settled::Duplicate | Settled::Malformed(_) => None,
        });
        let left = self.handover.offer(acceptances, Instant::now()).await;
        self.metrics.overflowed(left);
        self.report(batch, settled);
        position.settled = last;
        position.progress = Some(last);
        position.progress_seen = Instant::now();
        position.to_bookmark = Some(last);
        self.status.moved_to(last);
    }

    fn report(&self, batch: &[&Decoded], settled: &[Settled]) {
        let mut counts: BTreeMap<(&'static str, &str, &str), u64> = BTreeMap::new();
        for (decoded, outcome) in batch.iter().zip(settled) {
            let intent = decoded.intent.as_ref().ok();
            let label = intent.map_or(("", ""), |intent| (&*intent.notification_type, &*intent.producer));
            *counts.entry((outcome.outcome(), label.0, label.1)).or_default() += 1;
            if let Settled::Malformed(row) = outcome {
                tracing::warn!(stream = row.stream, entry_id = %row.entry_id, failure_code = row.rejection.code.as_str(),
                    reason = row.rejection.message, "an entry was not accepted");
            }
        }
        self.metrics.settled(&counts);
    }

    fn finish(&self, batch: &VecDeque<Ahead>, settled: &[Settled]) {
        if let Some(first) = batch.front() {
            self.metrics.accepted_within(first.read_at.elapsed());
        }
        for (ahead, outcome) in batch.iter().zip(settled) {
            ahead.span.record("outcome", outcome.outcome());
        }
    }
}

/// Whether an intent is not accepted because of what the directory said, or could not say.
fn directory_objects(batch: &[&Decoded], decision: &accept::Decision) -> bool {
    let rejected = |(decoded, outcome): (&&Decoded, &Settled)| {
        decoded.intent.is_ok() && matches!(outcome, Settled::Malformed(_))
    };
    decision.wait.is_some() || batch.iter().zip(&decision.settled).any(rejected)
}
