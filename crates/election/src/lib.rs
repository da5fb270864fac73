//! Leader election: of all processes that campaign for a key, one at a time has a term.
//!
//! **The promise** is that of the [`lock`] underneath: terms of a key do not overlap by PostgreSQL's clock,
//! and each has a higher fence than all terms before it. A leader that is slow to notice the end of its term
//! may still write; the target of the writes must reject a fence lower than one that it has seen.
//!
//! **Failover.** A leader that steps down sends a leader-change [`Notice`], and another candidate takes over
//! at once. A leader's term is tied to a session of PostgreSQL, which ends with its process: candidates check
//! it every [`SESSION_POLL_INTERVAL`], and when it has ended they release the lock and campaign. A leader
//! that hangs, or dies before a candidate has seen its session, is followed when its lease expires, within
//! [`TERM`] and two seconds. Notices and sessions only save time: candidates campaign when the lease ends by
//! PostgreSQL's clock, and at least every [`LEADER_POLL_INTERVAL`]. Clocks of two processes are never
//! compared.
//!
//! It deliberately lacks: priorities and fairness among candidates, and a loop. The caller campaigns,
//! works until the term is lost or the work is done, and steps down.

mod leadership;
mod notice;

pub use leadership::{
    CAMPAIGN_INTERVAL_MIN, LEADER_POLL_INTERVAL, Leadership, RenewedTerm, SESSION_POLL_INTERVAL, TERM,
};
pub use notice::{NoNotice, Notice};
