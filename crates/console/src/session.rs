//! Sessions of operators: the check in front of every page.
//!
//! The id of a session is 256 random bits in a cookie; the store contains only its SHA-256. A session is
//! valid while its token is in the tokens file with the role `operator`. So it ends on every replica when its
//! row is deleted, when its lifetime is over, and when the token is removed (ADR 0039).

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use domain::ports::{SessionStore, StoreError, TokenHash};
use http_server::admit_known_client;
use url::form_urlencoded;

use crate::deadline::SignedIn;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout;
use crate::operator::{Cookie, Operator};
use crate::ports::{Console, Ports};

/// The path of the sign-in.
pub(crate) const SIGN_IN_PATH: &str = "/console/sign-in";
/// The longest path that a sign-in returns to, in bytes.
const MAX_NEXT_BYTES: usize = 2_048;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = PageError;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, PageError> {
        // It is missing only for a handler that is not behind the check.
        head.extensions.get::<Self>().cloned().ok_or(PageError::Forged)
    }
}

/// Returns the operator who sent the request; `None` if the sender is not signed in as one.
pub(crate) async fn signed_in<P: Ports>(
    console: &Console<P>,
    head: &Parts,
) -> Result<Option<Operator>, StoreError> {
    let https = console.proxies.client(head).https;
    let Some(secret) = Cookie::Session.read(&head.headers, https) else { return Ok(None) };
    let session = secret.hash();
    let Some(TokenHash(sha256)) = console.sessions.get_session(&session).await? else { return Ok(None) };
    let principal = console.tokens.by_sha256(&sha256).filter(|principal| principal.operator);
    Ok(principal.map(|principal| Operator { name: principal.name, form_token: secret.form_token(), session }))
}

/// Admits requests of operators. A request that may change something is admitted only if it is a form of the
/// operator's own session.
pub(crate) async fn require_operator<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, mut body) = request.into_parts();
    let operator = match signed_in(&console, &head).await {
        Ok(Some(operator)) => operator,
        Ok(None) => return to_sign_in(&head),
        Err(error) => return PageError::from(error).into_response(),
    };
    // Before this point, the listener had not identified the client.
    admit_known_client(&head.extensions).await;
    if let Some(signed_in) = head.extensions.get::<SignedIn>() {
        signed_in.set(operator.clone());
    }
    if ![Method::GET, Method::HEAD].contains(&head.method) {
        match Form::read(&mut head, std::mem::take(&mut body), &operator.form_token).await {
            Ok(form) => {
                head.extensions.insert(form);
            }
            Err(error) => return layout::render(error.into_response(), Some(&operator)),
        }
    }
    head.extensions.insert(operator.clone());
    layout::render(next.run(Request::from_parts(head, body)).await, Some(&operator))
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
