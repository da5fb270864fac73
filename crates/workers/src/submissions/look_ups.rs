//! Looking up the recipients of submissions, each by itself.

use std::collections::HashMap;

use ambient::{Clock, Tokens};
use domain::ports::{AcceptanceStore, AnswerStore, Lookup, UserDirectory};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::{Key, SubmissionIntake, Waiting};

/// The most submissions whose recipients are looked up at a time. Those that name the same user share its
/// look-up.
const MAX_LOOK_UPS: usize = 1_024;

/// A submission whose recipients have been looked up.
#[derive(Debug)]
pub(super) struct LookedUp {
    pub(super) waiting: Waiting,
    /// What the directory said of each recipient.
    pub(super) users: HashMap<String, Lookup>,
}

impl LookedUp {
    /// The same with its recipients; `None` if they are not known.
    pub(super) fn of(mut waiting: Waiting) -> Option<Self> {
        let users = waiting.users.take()?;
        Some(Self { waiting, users })
    }

    pub(super) fn into_waiting(self) -> Waiting {
        Waiting { users: Some(self.users), ..self.waiting }
    }

    /// Whether its key was read and not claimed.
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
    /// Passes each submission on when its look-up has ended, until no more come.
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

    /// What the directory says of the recipients, if it need not be asked.
    pub(super) fn recall_recipients(&self, waiting: &Waiting) -> Option<HashMap<String, Lookup>> {
        let users = waiting.submission.intent.audience.users();
        if users.is_empty() {
            return Some(HashMap::new());
        }
        let ids: Vec<&str> = users.iter().map(String::as_str).collect();
        Some(users.iter().cloned().zip(self.directory.recall(&ids)?).collect())
    }
}
