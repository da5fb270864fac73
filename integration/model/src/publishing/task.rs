//! The memory of a publisher: its chunk and its completions.

use super::Replica;
use crate::Server;

/// A chunk of one route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Task {
    /// There is none.
    Idle,
    /// The route was read.
    Read {
        /// The route.
        route: u8,
        /// The version that was read.
        version: u8,
        /// True if a marker may have expired since.
        is_old: bool,
    },
    /// The lease was acquired.
    Leased {
        /// The route.
        route: u8,
        /// The version that was read.
        version: u8,
        /// True if a marker may have expired since the route was read.
        is_old: bool,
    },
    /// The stream refused the entry.
    Refused {
        /// The route.
        route: u8,
        /// The version that was read.
        version: u8,
    },
    /// The entry is acknowledged.
    Completing(Completion),
}

/// A completion that is not committed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Completion {
    /// The route.
    pub route: u8,
    /// The version that was read.
    pub version: u8,
    /// The entry.
    pub id: u8,
    /// The server that acknowledged it.
    pub server: Server,
    /// The stage.
    pub stage: Stage,
}

/// The stage of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The acknowledgement is recent: the statement may be sent.
    Fresh,
    /// The acknowledgement is to be confirmed first.
    Stale,
    /// The statement was sent, and PostgreSQL executes it late.
    InFlight,
}

/// The place of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The chunk.
    Task,
    /// The list of deferred completions.
    Deferred,
}

impl Task {
    /// The route of the chunk.
    pub(super) fn route(&self) -> Option<u8> {
        match *self {
            Self::Idle => None,
            Self::Read { route, .. } | Self::Leased { route, .. } | Self::Refused { route, .. } => {
                Some(route)
            }
            Self::Completing(completion) => Some(completion.route),
        }
    }

    /// True if the chunk may still use its token.
    pub(super) fn knows_token(&self, of: usize) -> bool {
        self.route().map(usize::from) == Some(of) && !matches!(self, Self::Completing(_))
    }

    pub(super) fn with_route(self, to: &[u8]) -> Self {
        let new = |route: u8| to[usize::from(route)];
        match self {
            Self::Idle => Self::Idle,
            Self::Read { route, version, is_old } => Self::Read { route: new(route), version, is_old },
            Self::Leased { route, version, is_old } => Self::Leased { route: new(route), version, is_old },
            Self::Refused { route, version } => Self::Refused { route: new(route), version },
            Self::Completing(completion) => Self::Completing(completion.with_route(to)),
        }
    }
}

impl Completion {
    pub(super) fn with_route(self, to: &[u8]) -> Self {
        Self { route: to[usize::from(self.route)], ..self }
    }
}

impl Replica {
    /// The part that is about a route.
    pub(super) fn about(self, route: u8) -> Self {
        let task = if self.task.route() == Some(route) { self.task } else { Task::Idle };
        Self { task, deferred: self.deferred.filter(|completion| completion.route == route) }
    }

    pub(super) fn with_route(self, to: &[u8]) -> Self {
        let deferred = self.deferred.map(|completion| completion.with_route(to));
        Self { task: self.task.with_route(to), deferred }
    }

    /// The completions, in the order of the mask of [`Action::Settle`].
    pub(super) fn completions(&mut self) -> [Option<&mut Completion>; 2] {
        let task = match &mut self.task {
            Task::Completing(completion) => Some(completion),
            _ => None,
        };
        [task, self.deferred.as_mut()]
    }

    pub(super) fn completion(&mut self, place: Place) -> Option<&mut Completion> {
        let [task, deferred] = self.completions();
        match place {
            Place::Task => task,
            Place::Deferred => deferred,
        }
    }

    /// The version of each copy of a route.
    pub(super) fn versions(&mut self) -> impl Iterator<Item = (u8, &mut u8)> {
        let of_task = match &mut self.task {
            Task::Idle => None,
            Task::Read { route, version, .. }
            | Task::Leased { route, version, .. }
            | Task::Refused { route, version } => Some((*route, version)),
            Task::Completing(completion) => Some((completion.route, &mut completion.version)),
        };
        let of_deferred =
            self.deferred.as_mut().map(|completion| (completion.route, &mut completion.version));
        of_task.into_iter().chain(of_deferred)
    }

    pub(super) fn end(&mut self, place: Place) {
        match place {
            Place::Task => self.task = Task::Idle,
            Place::Deferred => self.deferred = None,
        }
    }
}
