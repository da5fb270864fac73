//! Stores whose statements take time in proportion to their cost, and one whose records are all kept.

use super::*;

/// A table whose statements take time in proportion to their cost.
#[derive(Debug)]
pub(super) struct Table<K> {
    pub(super) rows: Vec<Expired<K>>,
    /// The cost above which a deletion times out, unless it is of one row.
    pub(super) times_out_above: usize,
    /// Rows whose deletion is refused.
    pub(super) refused: Vec<K>,
    /// True if nothing can be listed.
    pub(super) unavailable: bool,
    /// The number of rows above which a listing times out.
    pub(super) longest_page: usize,
    pub(super) time_of_deletion: Duration,
    /// The rows of each deletion, and whether it succeeded.
    pub(super) deletions: Vec<(usize, bool)>,
    /// The number of rows that each listing requested.
    pub(super) listings: Vec<usize>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            times_out_above: usize::MAX,
            refused: Vec::new(),
            unavailable: false,
            longest_page: usize::MAX,
            time_of_deletion: Duration::ZERO,
            deletions: Vec::new(),
            listings: Vec::new(),
        }
    }
}

impl<K: Clone + PartialEq> Table<K> {
    fn list(&mut self, after: Option<&Expired<K>>, limit: usize) -> Result<Vec<Expired<K>>, StoreError> {
        self.listings.push(limit);
        if self.unavailable {
            return Err(StoreError::Unavailable { operation: "list", source: "it is down".into() });
        }
        if limit > self.longest_page {
            return Err(StoreError::TimedOut { operation: "list", source: "too many rows".into() });
        }
        let later = self.rows.iter().filter(|row| after.is_none_or(|after| row.at > after.at));
        Ok(later.take(limit).cloned().collect())
    }

    fn delete(&mut self, keys: &[&K]) -> Result<Removal, StoreError> {
        let cost: usize = self.rows.iter().filter(|row| keys.contains(&&row.key)).map(cost).sum();
        let operation = "delete";
        let result = if cost > self.times_out_above && keys.len() > 1 {
            Err(StoreError::TimedOut { operation, source: "too large".into() })
        } else if self.refused.iter().any(|key| keys.contains(&key)) {
            Err(StoreError::Refused { operation, source: "a foreign key".into() })
        } else {
            self.rows.retain(|row| !keys.contains(&&row.key));
            Ok(Removal { removed: keys.len() as u64, ..Removal::default() })
        };
        self.deletions.push((keys.len(), result.is_ok()));
        result
    }

    pub(super) fn timeouts(&self) -> usize {
        self.deletions.iter().filter(|(_, succeeded)| !succeeded).count()
    }
}

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) records: Mutex<Table<NotificationId>>,
    pub(super) malformed: Mutex<Table<MalformedKey>>,
    pub(super) actions: Mutex<Table<OperatorActionId>>,
    pub(super) keys: Mutex<Keys>,
    /// The number of sessions that have ended, and the number that each call requested.
    pub(super) sessions: Mutex<(usize, Vec<usize>)>,
}

/// Expired idempotency keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) expired: usize,
    /// The number of keys above which a chunk times out, unless this is 0.
    pub(super) times_out_above: usize,
    /// The number of keys that each chunk requested.
    pub(super) chunks: Vec<usize>,
}

impl Store {
    pub(super) fn records(&self) -> MutexGuard<'_, Table<NotificationId>> {
        self.records.lock().expect("not poisoned")
    }

    pub(super) fn malformed(&self) -> MutexGuard<'_, Table<MalformedKey>> {
        self.malformed.lock().expect("not poisoned")
    }
}

impl RetentionStore<NotificationId> for Store {
    async fn list_expired(
        &self,
        _: Cutoff,
        after: Option<&Expired<NotificationId>>,
        limit: usize,
    ) -> Result<Vec<Expired<NotificationId>>, StoreError> {
        self.records().list(after, limit)
    }

    async fn delete_expired(&self, keys: &[&NotificationId], _: Cutoff) -> Result<Removal, StoreError> {
        let time = self.records().time_of_deletion;
        tokio::time::sleep(time).await;
        self.records().delete(keys)
    }
}

impl RetentionStore<MalformedKey> for Store {
    async fn list_expired(
        &self,
        _: Cutoff,
        after: Option<&Expired<MalformedKey>>,
        limit: usize,
    ) -> Result<Vec<Expired<MalformedKey>>, StoreError> {
        self.malformed().list(after, limit)
    }

    async fn delete_expired(&self, keys: &[&MalformedKey], _: Cutoff) -> Result<Removal, StoreError> {
        let time = self.malformed().time_of_deletion;
        tokio::time::sleep(time).await;
        self.malformed().delete(keys)
    }
}

impl RetentionStore<OperatorActionId> for Store {
    async fn list_expired(
        &self,
        _: Cutoff,
        after: Option<&Expired<OperatorActionId>>,
        limit: usize,
    ) -> Result<Vec<Expired<OperatorActionId>>, StoreError> {
        self.actions.lock().expect("not poisoned").list(after, limit)
    }

    async fn delete_expired(&self, keys: &[&OperatorActionId], _: Cutoff) -> Result<Removal, StoreError> {
        self.actions.lock().expect("not poisoned").delete(keys)
    }
}

impl KeySweep for Store {
    async fn sweep_idempotency_keys(&self, limit: usize) -> Result<u64, StoreError> {
        let mut keys = self.keys.lock().expect("not poisoned");
        keys.chunks.push(limit);
        if (1..limit).contains(&keys.times_out_above) {
            return Err(StoreError::TimedOut { operation: "sweep", source: "too many".into() });
        }
        let swept = keys.expired.min(limit);
        keys.expired -= swept;
        Ok(swept as u64)
    }
}

impl SessionSweep for Store {
    async fn sweep_sessions(&self, limit: usize) -> Result<u64, StoreError> {
        let mut sessions = self.sessions.lock().expect("not poisoned");
        let swept = sessions.0.min(limit);
        sessions.0 -= swept;
        sessions.1.push(limit);
        Ok(swept as u64)
    }
}

/// A store of page after page of expired records that each have a live route. The service is stopped while
/// the third page is read.
pub(super) struct KeptBack {
    pub(super) pages: Mutex<usize>,
    pub(super) stop: CancellationToken,
}

impl RetentionStore<NotificationId> for KeptBack {
    async fn list_expired(
        &self,
        _: Cutoff,
        _: Option<&Expired<NotificationId>>,
        limit: usize,
    ) -> Result<Vec<Expired<NotificationId>>, StoreError> {
        let mut pages = self.pages.lock().expect("not poisoned");
        *pages += 1;
        if *pages == 3 {
            self.stop.cancel();
        }
        assert!(*pages <= 3, "the stop was not looked at");
        Ok(vec![Expired { live: true, ..record(1, 3) }; limit])
    }

    async fn delete_expired(&self, _: &[&NotificationId], _: Cutoff) -> Result<Removal, StoreError> {
        panic!("records with live routes stay")
    }
}

impl RetentionStore<MalformedKey> for KeptBack {
    async fn list_expired(
        &self,
        _: Cutoff,
        _: Option<&Expired<MalformedKey>>,
        _: usize,
    ) -> Result<Vec<Expired<MalformedKey>>, StoreError> {
        panic!("the service is stopped")
    }

    async fn delete_expired(&self, _: &[&MalformedKey], _: Cutoff) -> Result<Removal, StoreError> {
        panic!("the service is stopped")
    }
}

impl RetentionStore<OperatorActionId> for KeptBack {
    async fn list_expired(
        &self,
        _: Cutoff,
        _: Option<&Expired<OperatorActionId>>,
        _: usize,
    ) -> Result<Vec<Expired<OperatorActionId>>, StoreError> {
        panic!("the service is stopped")
    }

    async fn delete_expired(&self, _: &[&OperatorActionId], _: Cutoff) -> Result<Removal, StoreError> {
        panic!("the service is stopped")
    }
}

impl KeySweep for KeptBack {
    async fn sweep_idempotency_keys(&self, _: usize) -> Result<u64, StoreError> {
        panic!("the service is stopped")
    }
}

impl SessionSweep for KeptBack {
    async fn sweep_sessions(&self, _: usize) -> Result<u64, StoreError> {
        panic!("the service is stopped")
    }
}
