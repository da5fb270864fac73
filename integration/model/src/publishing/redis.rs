//! Redis: the outbound stream, and for each route the key that is a lease or a marker.

use crate::{REPLICAS, Server};

use super::ROUTES;

/// The number of entry ids.
const IDS: usize = 10;

/// The value of the lease key of a route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Key {
    /// No value.
    #[default]
    Empty,
    /// The token of the present chunk of a replica.
    Token(u8),
    /// A token that no process knows any more.
    Abandoned,
    /// The marker of an entry.
    Marker(u8),
}

/// The server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Redis {
    /// The identity.
    pub server: Server,
    /// The last id that was given. The entry with id 0 is older than the model and stays; it is that of
    /// another route, unless one is published at the beginning.
    pub last: u8,
    /// For each id the route of its entry.
    owners: [Option<u8>; IDS],
    /// The lease key of each route.
    pub keys: [Key; ROUTES],
}

impl Redis {
    /// The first server, whose only entry, id 0, is that of this route.
    pub(super) fn with_first_of(route: Option<usize>) -> Self {
        let mut owners = [None; IDS];
        owners[0] = route.map(|route| route as u8);
        Self { server: Server::First, last: 0, owners, keys: [Key::Empty; ROUTES] }
    }

    /// The route of the entry with this id.
    pub fn owner(&self, id: u8) -> Option<usize> {
        self.owners[usize::from(id)].map(usize::from)
    }

    /// True if the entry with this id is there and is of this route.
    pub fn is_entry_of(&self, id: u8, route: usize) -> bool {
        self.owner(id) == Some(route)
    }

    /// The number of entries of a route.
    pub fn entries_of(&self, route: usize) -> usize {
        self.owners.iter().flatten().filter(|owner| usize::from(**owner) == route).count()
    }

    /// The id of the first entry of a route.
    pub fn entry_of(&self, route: usize) -> Option<u8> {
        let at = self.owners.iter().position(|owner| owner.map(usize::from) == Some(route));
        at.map(|id| id as u8)
    }

    /// The ids of the entries, each as a bit.
    pub(super) fn ids(&self) -> u16 {
        self.ids_where(|owner| owner.is_some())
    }

    /// The ids of the entries of a route, each as a bit.
    pub(super) fn ids_of(&self, route: usize) -> u16 {
        self.ids_where(|owner| owner.map(usize::from) == Some(route))
    }

    fn ids_where(&self, is_counted: impl Fn(Option<u8>) -> bool) -> u16 {
        let bits = self.owners.iter().enumerate().map(|(id, owner)| u16::from(is_counted(*owner)) << id);
        bits.fold(0, |all, bit| all | bit)
    }

    /// The number of entries after the oldest one.
    pub fn length(&self) -> u8 {
        self.owners[1..].iter().flatten().count() as u8
    }

    /// Adds an entry and returns its id.
    pub(super) fn add(&mut self, route: usize) -> u8 {
        self.last += 1;
        self.owners[usize::from(self.last)] = Some(route as u8);
        self.last
    }

    /// Replaces the server. `tokens` has the lease under which a lost entry was appended.
    pub(super) fn change(&mut self, kept: u8, tokens: [Key; ROUTES], keeps_leases: bool, is_behind: bool) {
        self.server = Server::Second;
        let mut length = 0;
        let mut last = 0;
        for id in 1..IDS {
            let Some(route) = self.owners[id].map(usize::from) else { continue };
            if length < kept {
                (length, last) = (length + 1, id as u8);
                continue;
            }
            self.owners[id] = None;
            if self.keys[route] == Key::Marker(id as u8) {
                self.keys[route] = tokens[route];
            }
        }
        if is_behind {
            self.last = last;
        }
        if !keeps_leases {
            for key in self.keys.iter_mut().filter(|key| !matches!(key, Key::Marker(_))) {
                *key = Key::Empty;
            }
        }
    }

    /// The same server with other ids.
    pub(super) fn renumbered(&self, new: impl Fn(u8) -> u8) -> Self {
        let mut owners = [None; IDS];
        for (id, owner) in self.owners.iter().enumerate().filter(|(_, owner)| owner.is_some()) {
            owners[usize::from(new(id as u8))] = *owner;
        }
        Self { last: new(self.last), owners, ..*self }
    }

    /// The same server with routes and replicas in another order.
    pub(super) fn permuted(&self, routes: [usize; ROUTES], to: &[u8], replicas: &[u8; REPLICAS]) -> Self {
        let key = |old: usize| match self.keys[old] {
            Key::Token(replica) => Key::Token(replicas[usize::from(replica)]),
            key => key,
        };
        let owner = |owner: Option<u8>| owner.map(|route| to[usize::from(route)]);
        Self { owners: self.owners.map(owner), keys: routes.map(key), ..*self }
    }
}
