//! States that differ only in names have the same future and are explored once.

use stateright::Representative;

use super::{Completion, Key, ROUTES, Replica, Row, State, Task};
use crate::REPLICAS;

impl State {
    /// The ids that are used, each as a bit.
    fn ids(&mut self) -> u16 {
        let mut ids = 1 | 1 << self.redis.last | self.redis.ids();
        self.for_each_id(|id| ids |= 1 << *id);
        ids
    }

    /// Calls `change` for each id that is used outside of the stream.
    fn for_each_id(&mut self, mut change: impl FnMut(&mut u8)) {
        let rows = self.rows.iter_mut().filter_map(|row| row.entry.as_mut());
        let keys = self.redis.keys.iter_mut().filter_map(|key| match key {
            Key::Marker(id) => Some(id),
            _ => None,
        });
        rows.chain(keys).for_each(&mut change);
        for replica in &mut self.replicas {
            replica.completions().into_iter().flatten().for_each(|completion| change(&mut completion.id));
        }
        self.watch.ids().into_iter().flatten().flatten().for_each(change);
    }

    /// The same state with the smallest ids in the same order. Ids after the last one keep their distance
    /// from it, because they may be given again.
    fn renumbered(mut self) -> Self {
        let ids = self.ids();
        let rank = |id: u8| (ids & ((1 << id) - 1)).count_ones() as u8;
        let last = self.redis.last;
        if rank(last) == last {
            return self;
        }
        let new = |id: u8| if id <= last { rank(id) } else { rank(last) + (id - last) };
        self.for_each_id(|id| *id = new(*id));
        self.redis = self.redis.renumbered(new);
        self
    }

    /// The same state with routes and replicas in another order.
    fn permuted(&self, routes: [usize; ROUTES], is_swapped: bool) -> Self {
        let mut to = [0; ROUTES];
        routes.iter().enumerate().for_each(|(new, old)| to[*old] = new as u8);
        let replicas: [u8; REPLICAS] = if is_swapped { [1, 0] } else { [0, 1] };
        let replica = |at: usize| self.replicas[usize::from(replicas[at])].with_route(&to);
        Self {
            rows: routes.map(|old| self.rows[old]),
            redis: self.redis.permuted(routes, &to, &replicas),
            replicas: [replica(0), replica(1)],
            watch: self.watch.permuted(routes),
            was_in_flight: routes.map(|old| self.was_in_flight[old]),
            ..*self
        }
    }
}

/// A route with everything that names it.
type RouteView = (Row, Key, bool, u16, Option<u8>, [(Task, Option<Completion>); REPLICAS]);

impl State {
    fn view(&self, route: usize) -> RouteView {
        let of_route = |replica: Replica| replica.about(route as u8).with_route(&[0; ROUTES]);
        let replicas = self.replicas.map(of_route).map(|replica| (replica.task, replica.deferred));
        let ids = self.redis.ids_of(route);
        (
            self.rows[route],
            self.redis.keys[route],
            self.was_in_flight[route],
            ids,
            self.watch.id_of(route),
            replicas,
        )
    }
}

impl Representative for State {
    /// Routes differ in nothing but their number, and so do replicas; ids, in nothing but their order.
    fn representative(&self) -> Self {
        let renumbered = self.renumbered();
        let sorted = |is_swapped| {
            let state = if is_swapped { renumbered.permuted([0, 1, 2], true) } else { renumbered };
            let mut routes = [0, 1, 2];
            let views = routes.map(|route| state.view(route));
            routes.sort_unstable_by(|one, other| views[*one].cmp(&views[*other]));
            state.permuted(routes, false)
        };
        sorted(false).min(sorted(true))
    }
}
