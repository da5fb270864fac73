//! The check of a request's token, before its body is read.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;

use super::guesses::Guesses;
use super::rate_limit::RateLimit;
use super::{AccessTokens, Principal, unauthorized};
use crate::problem::{Problem, TOO_MANY_REQUESTS};
use crate::proxies::Peer;

/// The longest token that is looked up, in bytes.
const MAX_TOKEN: usize = 512;

/// A check whether a principal may make a request, based on everything except the body. An error is usually
/// [`FORBIDDEN`](crate::problem::FORBIDDEN).
pub type Rule = fn(&Principal, &Parts) -> Result<(), Problem>;

/// Passes requests with a known token, within the rate limit. Clones share tokens and limit.
#[derive(Debug, Clone)]
pub struct TokenGuard {
    tokens: AccessTokens,
    rate_limit: Arc<RateLimit>,
    guesses: Arc<Guesses>,
}

/// The rate limit of a request's token, against which a handler counts further units, such as the intents of
/// a batch. Handlers behind a [`TokenGuard`] with a limit extract it.
#[derive(Debug, Clone)]
pub struct Charge {
    rate_limit: Arc<RateLimit>,
    token: Arc<str>,
}

impl Charge {
    /// Counts `units` in addition to the request itself. A full bucket, which is one second of the limit,
    /// suffices for any number, and then becomes negative.
    pub fn further(&self, units: usize) -> Result<(), Problem> {
        self.rate_limit.take_further(&self.token, units).map_err(too_many_requests)
    }
}

fn too_many_requests(delay: Duration) -> Problem {
    Problem::new(TOO_MANY_REQUESTS, "The token exceeded its rate limit.").retry_after(delay)
}

impl<S: Sync> FromRequestParts<S> for Charge {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Problem> {
        head.extensions.get::<Self>().cloned().ok_or_else(|| unauthorized(head))
    }
}

impl TokenGuard {
    /// Creates a guard with `units_per_second` for each token, in bursts of one second; 0 for no limit. A
    /// request is one unit, plus those that its handler [charges](Charge).
    pub fn new(tokens: AccessTokens, units_per_second: u32) -> Self {
        Self { tokens, rate_limit: Arc::new(RateLimit::new(units_per_second)), guesses: Arc::default() }
    }

    /// Puts `routes`, all of which exist, behind this guard: 401 without a known token, then the error of
    /// `rule`, then 429 over the rate limit. Other methods remain 405. Handlers extract the [`Principal`].
    pub fn protect<S>(&self, routes: MethodRouter<S>, rule: Rule) -> MethodRouter<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        routes.route_layer(from_fn_with_state((self.clone(), rule), check))
    }

    fn admit(&self, head: &mut Parts, rule: Rule) -> Result<(), Problem> {
        let Some(principal) = self.tokens.principal(&head.headers) else {
            if head.headers.contains_key(AUTHORIZATION) {
                self.guesses.count(head.extensions.get::<Peer>().and_then(|peer| peer.addr))?;
            }
            return Err(unauthorized(head));
        };
        rule(&principal, head)?;
        self.rate_limit.take(&principal.name).map_err(too_many_requests)?;
        let charge = Charge { rate_limit: Arc::clone(&self.rate_limit), token: Arc::clone(&principal.name) };
        head.extensions.insert(charge);
        head.extensions.insert(principal);
        Ok(())
    }
}

async fn check(
    State((guard, rule)): State<(TokenGuard, Rule)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut head, body) = request.into_parts();
    guard.admit(&mut head, rule)?;
    Ok(next.run(Request::from_parts(head, body)).await)
}

impl AccessTokens {
    /// The owner of the token in the only `Authorization: Bearer` header. For interfaces without a
    /// [`TokenGuard`].
    pub fn principal(&self, headers: &HeaderMap) -> Option<Principal> {
        self.authenticate(bearer(headers)?)
    }
}

/// The token of the only `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && (1..=MAX_TOKEN).contains(&token.len())).then_some(token)
}
