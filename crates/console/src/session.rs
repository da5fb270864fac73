//! Sessions of viewers and operators: the check in front of every page.
//!
//! The id of a session is 256 random bits in a cookie; the store contains only its SHA-256. A session is
//! valid while its token is in the tokens file with a role. So it ends on every replica when its row is
//! deleted, when its lifetime is over, and when the token is removed or loses its role (ADR 0039). Each
//! request has the rights that the token has then: of a viewer only the sign-out is admitted (ADR 0063).

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use domain::personal::Sight;
use domain::ports::{SessionStore, StoreError, TokenHash};
use http_server::admit_known_client;
use url::form_urlencoded;

use crate::deadline::SignedIn;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout;
use crate::operator::{Cookie, Operator, Visitor};
use crate::ports::{Console, Ports};

/// The path of the sign-in.
pub(crate) const SIGN_IN_PATH: &str = "/console/sign-in";
/// The longest path that a sign-in returns to, in bytes.
const MAX_NEXT_BYTES: usize = 2_048;

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = PageError;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, PageError> {
        // It is missing only for a handler that is not behind the check.
        head.extensions.get::<Self>().cloned().ok_or(PageError::Forged)
    }
}

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = PageError;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, PageError> {
        Visitor::from_request_parts(head, state).await?.operator().ok_or(PageError::TakesOperator)
    }
}

/// Returns the viewer or operator who sent the request; `None` if the sender is not signed in as one.
pub(crate) async fn signed_in<P: Ports>(
    console: &Console<P>,
    head: &Parts,
) -> Result<Option<Visitor>, StoreError> {
    let https = console.proxies.client(head).https;
    let Some(secret) = Cookie::Session.read(&head.headers, https) else { return Ok(None) };
    let session = secret.hash();
    let Some(TokenHash(sha256)) = console.sessions.get_session(&session).await? else { return Ok(None) };
    let principal = console.tokens.by_sha256(&sha256).filter(|principal| principal.role.is_some());
    Ok(principal.map(|principal| Visitor {
        sight: if principal.sees_personal() { Sight::Whole } else { Sight::Masked },
        operates: principal.is_operator(),
        name: principal.name,
        form_token: secret.form_token(),
        session,
    }))
}

/// Admits requests of viewers and operators. A request that may change something is admitted only if it is a
/// form of an operator's own session, or the sign-out.
pub(crate) async fn require_session<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, mut body) = request.into_parts();
    let visitor = match signed_in(&console, &head).await {
        Ok(Some(visitor)) => visitor,
        Ok(None) => return to_sign_in(&head),
        Err(error) => return PageError::from(error).into_response(),
    };
    // Before this point, the listener had not identified the client.
    admit_known_client(&head.extensions).await;
    if let Some(signed_in) = head.extensions.get::<SignedIn>() {
        signed_in.set(visitor.clone());
    }
    if ![Method::GET, Method::HEAD].contains(&head.method) {
        if !visitor.operates && head.uri.path() != layout::SIGN_OUT_PATH {
            return layout::render(PageError::TakesOperator.into_response(), Some(&visitor));
        }
        match Form::read(&mut head, std::mem::take(&mut body), &visitor.form_token).await {
            Ok(form) => {
                head.extensions.insert(form);
            }
            Err(error) => return layout::render(error.into_response(), Some(&visitor)),
        }
    }
    head.extensions.insert(visitor.clone());
    layout::render(next.run(Request::from_parts(head, body)).await, Some(&visitor))
}

/// Redirects to the sign-in, which then leads back to the requested page.
fn to_sign_in(head: &Parts) -> Response {
    let wanted = head.uri.path_and_query().map_or("", |path| path.as_str());
    let next = own_path(wanted).filter(|path| head.method == Method::GET && path != "/console/");
    match next {
        None => Redirect::to(SIGN_IN_PATH).into_response(),
        Some(next) => {
            let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", &next).finish();
            Redirect::to(&format!("{SIGN_IN_PATH}?{query}")).into_response()
        }
    }
}

/// Resolves `text` like a browser, and returns it as the path of a page of the console; `None` for anything
/// else, for example another host.
pub(crate) fn own_path(text: &str) -> Option<String> {
    if text.len() > MAX_NEXT_BYTES || !text.starts_with("/console/") {
        return None;
    }
    // Cannot fail: the text is a URL.
    let base = url::Url::parse("http://console.invalid/").expect("a URL");
    let url = base
        .join(text)
        .ok()
        .filter(|url| url.origin() == base.origin() && url.path().starts_with("/console/"))?;
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some(format!("{}{query}", url.path()))
}
