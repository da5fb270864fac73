//! The check of a request's token, before its body is read.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;

use super::rate_limit::RateLimit;
use super::{Principal, Tokens, unauthorized};
use crate::problem::{Problem, TOO_MANY_REQUESTS};

/// The longest token that is looked up, in bytes.
const MAX_TOKEN: usize = 512;

/// Whether a principal may make a request, judged by everything but the body. An error is usually
/// [`FORBIDDEN`](crate::problem::FORBIDDEN).
pub type Rule = fn(&Principal, &Parts) -> Result<(), Problem>;

/// Lets requests with a known token pass, as many as the rate limit allows. Clones share both.
#[derive(Debug, Clone)]
pub struct Guard {
    tokens: Tokens,
    rate_limit: Arc<RateLimit>,
}

impl Guard {
    /// `requests_per_second` for each token, with bursts of one second; 0 for no limit.
    pub fn new(tokens: Tokens, requests_per_second: u32) -> Self {
        Self { tokens, rate_limit: Arc::new(RateLimit::new(requests_per_second)) }
    }

    /// Puts `routes`, all of which exist, behind this guard: 401 without a known token, then whatever `rule` says, then 429
    /// over the rate limit. Other methods remain 405. Handlers get the [`Principal`] by extraction.
    pub fn protect<S>(&self, routes: MethodRouter<S>, rule: Rule) -> MethodRouter<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        routes.route_layer(from_fn_with_state((self.clone(), rule), check))
    }

    fn admit(&self, head: &mut Parts, rule: Rule) -> Result<(), Problem> {
        let principal = self.tokens.principal(&head.headers).ok_or_else(unauthorized)?;
        rule(&principal, head)?;
        self.rate_limit.take(&principal.name).map_err(|delay| {
            Problem::new(TOO_MANY_REQUESTS, "The token exceeded its rate limit.").retry_after(delay)
        })?;
        head.extensions.insert(principal);
        Ok(())
    }
}

async fn check(
    State((guard, rule)): State<(Guard, Rule)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut head, body) = request.into_parts();
    guard.admit(&mut head, rule)?;
    Ok(next.run(Request::from_parts(head, body)).await)
}

impl Tokens {
    /// Whose token the one `Authorization: Bearer` header holds. For interfaces without a [`Guard`].
    pub fn principal(&self, headers: &HeaderMap) -> Option<Principal> {
        self.authenticate(bearer(headers)?)
    }
}

/// The token of the one `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && (1..=MAX_TOKEN).contains(&token.len())).then_some(token)
}
