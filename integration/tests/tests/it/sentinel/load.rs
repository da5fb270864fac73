//! Producers beside failovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use super::*;

/// The pause of a producer after each intent.
const PACE: Duration = Duration::from_millis(20);
/// The time for a response of a server that may be paused.
const PATIENCE: Duration = Duration::from_secs(1);

/// Producers by HTTP and by the stream, until they are told to stop.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    by_http: JoinHandle<BTreeSet<u32>>,
    by_stream: JoinHandle<BTreeSet<u32>>,
}

impl Load {
    pub(super) fn start(world: &World, service: &Service) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let group = world.sentinels.as_ref().expect("it has Sentinels");
        let sentinels = group.sentinels.iter().map(Redis::addr).collect();
        Self {
            by_http: tokio::spawn(produce_by_http(service.api_addr(), Arc::clone(&stop))),
            by_stream: tokio::spawn(produce_by_stream(sentinels, group.master.clone(), Arc::clone(&stop))),
            stop,
        }
    }

    /// Returns what was accepted by HTTP, and what was appended to the stream.
    pub(super) async fn stop(self) -> (BTreeSet<u32>, BTreeSet<u32>) {
        self.stop.store(true, Ordering::SeqCst);
        (self.by_http.await.expect("no panic"), self.by_stream.await.expect("no panic"))
    }
}

/// Sends each intent until it is accepted.
async fn produce_by_http(api: String, stop: Arc<AtomicBool>) -> BTreeSet<u32> {
    let (mut accepted, mut pace) = (BTreeSet::new(), tokio::time::interval(PACE));
    while !stop.load(Ordering::SeqCst) {
        pace.tick().await;
        let n = FIRST_BY_HTTP + u32::try_from(accepted.len()).expect("few intents");
        let sent = try_ask(&api, PRODUCER, "POST", "/v1/intents", Some(&key(n)), &body(n).to_string()).await;
        if sent.is_ok_and(|response| response.status == 202) {
            accepted.insert(n);
        }
    }
    accepted
}

/// Appends each intent until Redis acknowledges it, to the server that a Sentinel names.
async fn produce_by_stream(sentinels: Vec<String>, master: String, stop: Arc<AtomicBool>) -> BTreeSet<u32> {
    let (mut appended, mut pace) = (BTreeSet::new(), tokio::time::interval(PACE));
    let mut connection = None;
    while !stop.load(Ordering::SeqCst) {
        pace.tick().await;
        if connection.is_none() {
            connection = primary_of(&sentinels, &master).await;
        }
        let Some(primary) = &mut connection else { continue };
        let n = u32::try_from(appended.len()).expect("few intents");
        match tokio::time::timeout(PATIENCE, intent(n).query_async::<String>(primary)).await {
            Ok(Ok(_)) => drop(appended.insert(n)),
            _ => connection = None,
        }
    }
    appended
}

/// A connection to the primary that the first Sentinel to respond names.
async fn primary_of(sentinels: &[String], master: &str) -> Option<MultiplexedConnection> {
    for sentinel in sentinels {
        let connect = async {
            let mut sentinel = open(sentinel).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
            let (host, port): (String, u16) = command.query_async(&mut sentinel).await?;
            open(&format!("{host}:{port}")).await
        };
        if let Ok(Ok(connection)) = tokio::time::timeout(PATIENCE, connect).await {
            return Some(connection);
        }
    }
    None
}

async fn open(addr: &str) -> redis::RedisResult<MultiplexedConnection> {
    redis::Client::open(format!("redis://{addr}"))?.get_multiplexed_async_connection().await
}
