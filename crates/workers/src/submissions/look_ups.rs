//! Looks up the recipients of submissions, each separately.

use std::collections::HashMap;

use ambient::{Clock, Tokens};
use domain::ports::{AcceptanceStore, AnswerStore, Lookup, UserDirectory};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::{Key, SubmissionIntake, Waiting};

/// The most submissions whose recipients are looked up at a time. Submissions that name the same user share
/// its lookup.
const MAX_LOOK_UPS: usize = 1_024;

/// A submission whose recipients have been looked up.
#[derive(Debug)]
pub(super) struct LookedUp {
    pub(super) waiting: Waiting,
    /// The lookup of each recipient.
    pub(super) users: HashMap<String, Lookup>,
}

impl LookedUp {
    /// Takes the recipients of a submission; `None` if they are not looked up.
    pub(super) fn of(mut waiting: Waiting) -> Option<Self> {
        let users = waiting.users.take()?;
        Some(Self { waiting, users })
    }

    pub(super) fn into_waiting(self) -> Waiting {
        Waiting { users: Some(self.users), ..self.waiting }
    }

    /// True if the key was read and not claimed.
    pub(super) fn has_free_key(&self) -> bool {
        self.waiting.key == Key::Free
    }
}

impl<A, D, C, T> SubmissionIntake<A, D, C, T>
where
    A: AcceptanceStore + AnswerStore,
    D: UserDirectory,
    C: Clock,
    T: Tokens,
{
    /// Passes each submission on when its lookup has ended, until no more arrive.
    pub(super) async fn look_up(
        &self,
        mut claimed: mpsc::Receiver<Waiting>,
        looked_up: mpsc::Sender<LookedUp>,
    ) {
        let mut running = FuturesUnordered::new();
        let mut open = true;
        while open || !running.is_empty() {
            tokio::select! {
                waiting = claimed.recv(), if open && running.len() < MAX_LOOK_UPS => match waiting {
                    Some(waiting) => running.push(self.look_up_recipients(waiting)),
                    None => open = false,
                },
                Some(found) = running.next() => drop(looked_up.send(found).await),
            }
        }
    }

    async fn look_up_recipients(&self, mut waiting: Waiting) -> LookedUp {
        if let Some(users) = waiting.users.take() {
            return LookedUp { waiting, users };
        }
        let ids: Vec<&str> = waiting.submission.intent.audience.users().iter().map(String::as_str).collect();
        let answers = if ids.is_empty() { Vec::new() } else { self.directory.look_up(&ids).await };
        let users = ids.into_iter().map(str::to_owned).zip(answers).collect();
        LookedUp { waiting, users }
    }

    /// Returns the lookups of the recipients, if the directory can recall all of them without a request.
    pub(super) fn recall_recipients(&self, waiting: &Waiting) -> Option<HashMap<String, Lookup>> {
        let users = waiting.submission.intent.audience.users();
        if users.is_empty() {
            return Some(HashMap::new());
        }
        let ids: Vec<&str> = users.iter().map(String::as_str).collect();
        Some(users.iter().cloned().zip(self.directory.recall(&ids)?).collect())
    }
}
