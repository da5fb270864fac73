//! Resubmits the malformed intents that an operator selects, beside the traffic (ADR 0065).
//!
//! A chunk is appended to the intents stream entry by entry, and then its rows are marked in one transaction.
//! If an append fails, those before it are marked. After each chunk there is a pause as long as the chunk
//! took, up to [`MAX_CHUNK_PAUSE`].
//!
//! Before each chunk the server of the stream is compared with the one on which the service reads it: what is
//! appended elsewhere, or to a stream that is gone, would be marked and never read.
//!
//! Crash recovery. A row that is not marked is selected again by the repeated request:
//!
//! | killed after | what is left | what happens next |
//! |---|---|---|
//! | selecting | nothing | The request is repeated. |
//! | appending some entries | entries, rows without a mark, no action | They are appended again. |
//! | an append without a reply | perhaps an entry | The same. |
//! | marking the rows | the chunk and its action | The request continues with the next one. |
//!
//! An intent is appended at least once. Of two entries the second is a duplicate of the first by its
//! idempotency key, as long as retention keeps the record of the first; after
//! `NOTIFICATION_IDEMPOTENCY_TTL` it would be accepted again. If the intent breaks a rule again, each entry
//! has a malformed row of its own. The same holds for two requests that resubmit one row at once: the row
//! keeps the id of the entry that was marked first.
//!
//! If Redis loses an entry after its row was marked, the row still names it. `notification explain` then
//! finds nothing under that id. The loss is the same as that of an entry that a producer appended.

use std::time::Duration;

use domain::malformed_intent::{MalformedKey, whole_fields};
use domain::ports::{CheckpointStore, IntentProducer, IntentStream, ResubmitStore, Resubmitter, StoreError};
use domain::resubmit::{
    CHUNK_INTENTS, ResubmitActor, ResubmitReport, ResubmitSelection, ResubmitTarget, ResubmitTargets,
};
use tokio::time::{Instant, sleep};

use crate::NamedStream;

/// The longest pause after a chunk.
const MAX_CHUNK_PAUSE: Duration = Duration::from_secs(1);

/// Appends the fields of malformed intents to the intents stream again.
#[derive(Clone, Debug)]
pub struct Resubmission<S, C, I, P> {
    /// The tables.
    pub store: S,
    /// The server on which the service reads the stream.
    pub checkpoints: C,
    /// The intents stream, and its name.
    pub intents: NamedStream<I>,
    /// The intents stream for a producer.
    pub producer: P,
}

impl<S, C, I, P> Resubmitter for Resubmission<S, C, I, P>
where
    S: ResubmitStore,
    C: CheckpointStore,
    I: IntentStream,
    P: IntentProducer,
{
    async fn select(&self, selection: &ResubmitSelection) -> Result<ResubmitTargets, StoreError> {
        self.store.select_malformed_intents(&self.intents.name, selection).await
    }

    async fn resubmit(
        &self,
        targets: &ResubmitTargets,
        selection: &ResubmitSelection,
        actor: ResubmitActor<'_>,
        mut go_on: impl FnMut(&ResubmitReport) -> bool + Send,
    ) -> Result<ResubmitReport, StoreError> {
        let (allowed, refused): (Vec<&ResubmitTarget>, Vec<_>) =
            targets.targets.iter().partition(|target| target.refusal().is_none());
        let mut report = ResubmitReport {
            refused: refused.len() as u64,
            unknown: targets.unknown.clone(),
            has_more: targets.continue_before.is_some(),
            continue_before: targets.continue_before,
            ..ResubmitReport::default()
        };
        let chunks = allowed.chunks(CHUNK_INTENTS);
        let last = chunks.len();
        for (number, chunk) in (1..).zip(chunks) {
            let began = Instant::now();
            self.check_stream().await?;
            let (appended, end) = self.append(chunk).await;
            if !appended.is_empty() {
                self.store.mark_resubmitted(&appended, selection, actor).await?;
            }
            end?;
            report.add(&appended);
            report.refused += (chunk.len() - appended.len()) as u64;
            let goes_on = go_on(&report);
            if number < last && !goes_on {
                (report.has_more, report.continue_before) = (true, None);
                break;
            }
            if number < last {
                sleep(began.elapsed().min(MAX_CHUNK_PAUSE)).await;
            }
        }
        Ok(report)
    }
}

impl<S, C, I, P> Resubmission<S, C, I, P>
where
    S: ResubmitStore,
    C: CheckpointStore,
    I: IntentStream,
    P: IntentProducer,
{
    /// Fails unless the stream is there, on the server on which the service reads it.
    async fn check_stream(&self) -> Result<(), StoreError> {
        let NamedStream { name, stream } = &self.intents;
        let refused = |problem: &str| StoreError::Unavailable {
            operation: "append to the intents stream",
            source: format!("{problem}; nothing was appended").into(),
        };
        if stream.inspect().await?.is_none() {
            return Err(refused("this Redis server does not have the stream"));
        }
        let (server, witness) = (stream.server().await?, self.checkpoints.load_witness(name).await?);
        match witness.is_elsewhere(&server) {
            true => Err(refused(
                "the service reads the stream on another Redis server, or has not resumed on this one yet",
            )),
            false => Ok(()),
        }
    }

    /// Appends the fields of a chunk. Returns the ids of the new entries, and the error that ended it before
    /// the last one. The fields are read one by one, because they may be large.
    async fn append(
        &self,
        chunk: &[&ResubmitTarget],
    ) -> (Vec<(MalformedKey, String)>, Result<(), StoreError>) {
        let mut appended = Vec::with_capacity(chunk.len());
        for target in chunk {
            match self.append_one(&target.key).await {
                Ok(id) => appended.extend(id.map(|id| (target.key.clone(), id))),
                Err(error) => return (appended, Err(error)),
            }
        }
        (appended, Ok(()))
    }

    /// Appends the fields of a row, unless it was resubmitted or deleted meanwhile, or they were cut.
    async fn append_one(&self, key: &MalformedKey) -> Result<Option<String>, StoreError> {
        let json = self.store.get_fields_to_resubmit(key).await?;
        match json.as_deref().and_then(whole_fields) {
            Some(fields) => Ok(Some(self.producer.append(&fields).await?.to_string())),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
