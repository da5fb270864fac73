//! The audit of the service, on the stores of a simulation that has come to rest.

use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::audit::{Discrepancy, Figures};
use domain::entry::{EntryId, RawFields};
use domain::ports::{
    IntentStream, LeaderLookup, OutboundState, ReadLimit, StoreError, StreamEntry, StreamReader,
};
use domain::query::LeaderTerm;
use domain::route::{Channel, RouteKey};
use memory_stores::{MemoryIntents, MemoryPublishing, Remote};
use workers::{Audit, AuditReport, AuditSettings, AuditStores};

use crate::network::Connection;
use crate::process::Process;
use crate::replica::STREAM;
use crate::world::World;

/// Longer than any simulation.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The streams of the Redis server, entry by entry.
struct Streams {
    intents: Arc<MemoryIntents>,
    publishing: Arc<MemoryPublishing>,
}

impl Streams {
    fn channel(stream: &str) -> Option<Channel> {
        Channel::ALL.into_iter().find(|channel| channel.as_str() == stream)
    }
}

impl StreamReader for Streams {
    async fn list_entries(
        &self,
        stream: &str,
        after: EntryId,
        until: EntryId,
        limit: ReadLimit,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let entries: Vec<(EntryId, RawFields)> = match Self::channel(stream) {
            Some(channel) => {
                let entries = self.publishing.entries(channel).into_iter();
                entries.map(|(id, fields)| (id, fields.into_iter().collect())).collect()
            }
            None => self.intents.entries().into_iter().map(|entry| (entry.id, entry.fields)).collect(),
        };
        let within = entries.into_iter().filter(|(id, _)| *id > after && *id <= until).take(limit.entries);
        Ok(within.map(|(id, fields)| StreamEntry { id, fields: Ok(fields) }).collect())
    }

    async fn inspect_stream(&self, stream: &str) -> Result<Option<OutboundState>, StoreError> {
        if let Some(channel) = Self::channel(stream) {
            return Ok(self.publishing.outbound_state(channel));
        }
        let state = self.intents.inspect().await?;
        Ok(state.map(|state| OutboundState {
            first: state.first,
            last_generated: state.last_generated,
            max_deleted: state.max_deleted,
            ..OutboundState::default()
        }))
    }

    async fn key_type(&self, _: &str) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// No leader is known: the audit then expects no particular fence.
struct UnknownLeader;

impl LeaderLookup for UnknownLeader {
    async fn leader(&self) -> Result<Option<LeaderTerm>, StoreError> {
        Ok(None)
    }

    async fn last_term_end(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }
}

/// The discrepancies, in words.
#[derive(Default)]
struct Found(Vec<String>);

impl AuditReport for Found {
    fn found(&mut self, discrepancy: &Discrepancy) {
        let Discrepancy { kind, subject, detail } = discrepancy;
        self.0.push(format!("AUDIT {kind:?} of {subject}: {detail}"));
    }

    fn stuck(&mut self, route: &RouteKey, due: Timestamp) {
        self.0.push(format!("AUDIT {route} was due at {due}"));
    }

    fn progress(&mut self, _: &Figures) {}
}

/// Returns what an audit finds.
pub(crate) async fn discrepancies(world: &World) -> Vec<String> {
    let process = Process::new("audit".to_owned());
    let connection = Connection::new(&process, &world.redis.server, world.plan.seed, &world.trace);
    let stores = AuditStores {
        tables: (*world.postgres.database).clone(),
        current: (*world.postgres.database).clone(),
        streams: Streams {
            intents: Arc::clone(&world.redis.intents),
            publishing: Arc::clone(&world.redis.publishing),
        },
        outbound: Remote::over(Arc::clone(&world.redis.publishing), connection.clone()),
        cache: Remote::over(Arc::clone(&world.redis.cache), connection),
        leader: UnknownLeader,
    };
    let settings = AuditSettings {
        intents_stream: STREAM.to_owned(),
        outbound_streams: Channel::ALL.map(|channel| (channel, channel.as_str().to_owned())),
        catalog: Arc::clone(&world.catalog),
        record_retention: RETENTION,
        malformed_retention: RETENTION,
        since: None,
        until: None,
    };
    let audit = Audit::new(stores, settings, Arc::clone(&world.postgres.clock), Found::default());
    match audit.run().await {
        Ok((_, Found(discrepancies))) => discrepancies,
        Err(error) => vec![format!("AUDIT ended: {error}")],
    }
}
