//! Log lines about single routes: failed attempts, deferred completions and lost entries. A few lines of each
//! kind are logged in a second, and then the number of further ones. The tables contain all of them.

use domain::ports::Failed;
use domain::route::{Channel, RouteKey};

use super::deferred::Cause;
use crate::log_limiter::LogLimiter;

/// The log of one channel.
#[derive(Debug)]
pub(super) struct RouteLog {
    channel: &'static str,
    /// Lines by result and classification.
    failed: LogLimiter<(&'static str, &'static str)>,
    deferred: LogLimiter<DeferredKind>,
    lost: LogLimiter<()>,
}

/// A [`Cause`] without PostgreSQL's message about a single route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum DeferredKind {
    Locked,
    TimedOut,
    Refused,
}

impl RouteLog {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel: channel.as_str(),
            failed: LogLimiter::new(),
            deferred: LogLimiter::new(),
            lost: LogLimiter::new(),
        }
    }

    /// Logs an attempt that failed and whose failure is committed.
    pub(super) fn attempt_failed(&mut self, route: &Failed) {
        self.report_suppressed(false);
        let result = if route.retry_at.is_some() { "failed" } else { "dead_letter" };
        if self.failed.admits((result, route.classification)) {
            tracing::warn!(channel = self.channel, notification_id = %route.key.notification_id,
                route_id = route.key.loggable_route_id(), attempt = route.attempt_count, result,
                classification = route.classification, error = route.message, "an attempt to publish failed");
        }
    }

    /// Logs a completion that is deferred for the first time.
    pub(super) fn deferred(&mut self, key: &RouteKey, cause: &Cause) {
        self.report_suppressed(false);
        let kind = match cause {
            Cause::Locked => DeferredKind::Locked,
            Cause::TimedOut(_) => DeferredKind::TimedOut,
            Cause::Refused(_) => DeferredKind::Refused,
        };
        if !self.deferred.admits(kind) {
            return;
        }
        let (channel, id, route) = (self.channel, key.notification_id.as_str(), key.loggable_route_id());
        match cause {
            Cause::Locked => tracing::warn!(
                channel,
                notification_id = id,
                route_id = route,
                "another transaction has locked a route; its completion is deferred and retried every second"
            ),
            Cause::TimedOut(error) => tracing::warn!(
                channel,
                notification_id = id,
                route_id = route,
                error,
                "the completion of a route failed or took too long; deferred and retried in the background"
            ),
            Cause::Refused(error) => tracing::error!(
                channel,
                notification_id = id,
                route_id = route,
                error,
                "PostgreSQL refuses the completion of a route; it is deferred until the cause is corrected"
            ),
        }
    }

    /// Logs a route whose entry Redis lost before the completion was committed.
    pub(super) fn entry_lost(&mut self, key: &RouteKey) {
        self.report_suppressed(false);
        if self.lost.admits(()) {
            tracing::warn!(
                channel = self.channel,
                notification_id = key.notification_id.as_str(),
                route_id = key.loggable_route_id(),
                "Redis lost an entry before the completion of its route was committed; the route is published again"
            );
        }
    }

    /// Logs the number of suppressed lines, once their second is over or if no lines follow (`ends`).
    pub(super) fn report_suppressed(&mut self, ends: bool) {
        let channel = self.channel;
        for ((result, classification), suppressed) in self.failed.suppressed(ends) {
            tracing::warn!(
                channel,
                result,
                classification,
                suppressed,
                "more attempts to publish failed for the same reason; routes and dead_letters have them all"
            );
        }
        for ((), suppressed) in self.lost.suppressed(ends) {
            tracing::warn!(
                channel,
                suppressed,
                "Redis lost more entries before the completions of their routes were committed; the routes are published again"
            );
        }
        for (kind, suppressed) in self.deferred.suppressed(ends) {
            match kind {
                DeferredKind::Locked => tracing::warn!(
                    channel,
                    suppressed,
                    "other transactions have locked more routes; their completions are deferred"
                ),
                DeferredKind::TimedOut => tracing::warn!(
                    channel,
                    suppressed,
                    "the completions of more routes fail or take too long; they are deferred"
                ),
                DeferredKind::Refused => tracing::error!(
                    channel,
                    suppressed,
                    "PostgreSQL refuses the completion of more routes; they are deferred"
                ),
            }
        }
    }
}
