//! Signing in with the token of a viewer or an operator, and signing out.
//!
//! The form of the sign-in has a token too, which belongs to a cookie that its page sets: no other site can
//! sign a user in. A session always begins with a new id; the previous session of the browser ends.

use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use domain::ports::{SessionStore, TokenHash};
use http_server::tokens::{Principal, token_sha256};
use maud::{Markup, html};

use crate::error::PageError;
use crate::forms::Form;
use crate::layout::{Page, SIGN_OUT_PATH, Section};
use crate::operator::{Cookie, FORM_TOKEN, FormToken, SESSION_LIFETIME, Secret, Visitor};
use crate::params::Params;
use crate::ports::{Console, Ports};
use crate::session::{SIGN_IN_PATH, own_path, signed_in};
use crate::widgets::{Tone, notice};

/// The longest token that is looked up, in bytes.
const MAX_TOKEN_BYTES: usize = 512;

/// The data that a browser deletes when its user signs out. Cookies and storage are shared with other
/// services of this host, so the console must not delete them; the console keeps nothing in storage.
const CLEAR_SITE_DATA: HeaderValue = HeaderValue::from_static("\"cache\"");

/// The routes of the sign-in, which is open to everyone.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(SIGN_IN_PATH, get(show::<P>).post(sign_in::<P>))
}

/// The route of the sign-out, which requires a session.
pub(crate) fn sign_out_routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(SIGN_OUT_PATH, post(sign_out::<P>))
}

/// The message above the form.
enum Message {
    Nothing,
    SignedOut,
    Refused,
    TooMany(Duration),
    Expired,
}

async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, PageError> {
    let (head, _) = request.into_parts();
    let params = Params::parse(query.as_deref(), &["next", "signed-out"])?;
    let next = params.text("next").and_then(own_path);
    if signed_in(&console, &head).await?.is_some() {
        return Ok(Redirect::to(next.as_deref().unwrap_or("/console/")).into_response());
    }
    let message = if params.text("signed-out").is_some() { Message::SignedOut } else { Message::Nothing };
    Ok(answer(&console, &head, next.as_deref(), &message))
}

async fn sign_in<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    request: Request,
) -> Result<Response, PageError> {
    let (mut head, body) = request.into_parts();
    let client = console.proxies.client(&head);
    let Some(secret) = Cookie::SignIn.read(&head.headers, client.https) else {
        let form = Form::read_unchecked(&mut head, body).await.ok();
        let next = form.as_ref().and_then(|form| form.text("next")).and_then(own_path);
        return Ok(answer(&console, &head, next.as_deref(), &Message::Expired));
    };
    let form = Form::read_sign_in(&mut head, body, &secret.form_token()).await?;
    let next = form.text("next").and_then(own_path);
    if let Err(delay) = console.attempts.begin(client.addr, console.clock.now()) {
        return Ok(answer(&console, &head, next.as_deref(), &Message::TooMany(delay)));
    }
    let Some((principal, sha256)) = owner_of(&console, form.text("token").unwrap_or_default()) else {
        let client_addr = client.addr.map(tracing::field::display);
        tracing::warn!(client_addr, "a sign-in to the console failed");
        return Ok(answer(&console, &head, next.as_deref(), &Message::Refused));
    };
    console.attempts.succeeded(client.addr);
    if let Some(former) = Cookie::Session.read(&head.headers, client.https) {
        console.sessions.delete_session(&former.hash()).await?;
    }
    let session = Secret::new(&*console.ids);
    console.sessions.insert_session(&session.hash(), &TokenHash(sha256), SESSION_LIFETIME).await?;
    tracing::info!(token_name = %principal.name, "a user signed in to the console");
    let mut response = Redirect::to(next.as_deref().unwrap_or("/console/")).into_response();
    response.headers_mut().append(SET_COOKIE, Cookie::Session.set(&session, client.https));
    response.headers_mut().append(SET_COOKIE, Cookie::SignIn.clear(client.https));
    Ok(response)
}

/// The viewer or operator with this token, and the token's hash.
fn owner_of<P: Ports>(console: &Console<P>, token: &str) -> Option<(Principal, [u8; 32])> {
    let token = token.trim();
    let sha256 = (token.len() <= MAX_TOKEN_BYTES).then(|| token_sha256(token))?;
    let principal = console.tokens.by_sha256(&sha256).filter(|principal| principal.role.is_some())?;
    Some((principal, sha256))
}

async fn sign_out<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    request: Request,
) -> Result<Response, PageError> {
    let (head, _) = request.into_parts();
    let https = console.proxies.client(&head).https;
    console.sessions.delete_session(&visitor.session).await?;
    tracing::info!(token_name = %visitor.name, "a user signed out of the console");
    let mut response = Redirect::to(&format!("{SIGN_IN_PATH}?signed-out=1")).into_response();
    response.headers_mut().append(SET_COOKIE, Cookie::Session.clear(https));
    response.headers_mut().insert(HeaderName::from_static("clear-site-data"), CLEAR_SITE_DATA);
    Ok(response)
}

/// The page with its form, and the cookie that the form belongs to. A cookie that the browser already has is
/// kept, so that two open pages both work.
fn answer<P: Ports>(console: &Console<P>, head: &Parts, next: Option<&str>, message: &Message) -> Response {
    let https = console.proxies.client(head).https;
    let known = Cookie::SignIn.read(&head.headers, https);
    let secret = known.unwrap_or_else(|| Secret::new(&*console.ids));
    // The browser does not send the cookie of a session when a link of another site leads here.
    let site = head.headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    let is_linked = matches!(site, Some("cross-site" | "same-site"));
    let content = content(&secret.form_token(), next, message, is_linked);
    let status = match message {
        Message::Nothing | Message::SignedOut => StatusCode::OK,
        Message::Refused | Message::Expired => StatusCode::FORBIDDEN,
        Message::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
    };
    let mut response = Page::new(Section::None, "Sign in", content).with_status(status).into_response();
    response.headers_mut().append(SET_COOKIE, Cookie::SignIn.set(&secret, https));
    if let Message::TooMany(delay) = message {
        response.headers_mut().insert(RETRY_AFTER, (delay.as_secs() + 1).into());
    }
    response
}

fn content(token: &FormToken, next: Option<&str>, message: &Message, is_linked: bool) -> Markup {
    html! {
        div.sign-in {
            (said(message))
            @if is_linked {
                p { "Signed in already? " a href=(next.unwrap_or("/console/")) { "Continue to the page" } }
            }
            form method="post" action=(SIGN_IN_PATH) {
                input type="hidden" name=(FORM_TOKEN) value=(token.0);
                @if let Some(next) = next { input type="hidden" name="next" value=(next); }
                label for="token" { "Token" }
                input #token type="password" name="token" required autofocus autocomplete="current-password"
                    spellcheck="false" maxlength=(MAX_TOKEN_BYTES) aria-describedby="token-hint";
                p.hint #token-hint {
                    "A token of the tokens file with the role operator or viewer. The session lasts 8 hours, or until you sign out."
                }
                button.primary type="submit" { "Sign in" }
            }
        }
    }
}

fn said(message: &Message) -> Markup {
    match message {
        Message::Nothing => html! {},
        Message::SignedOut => notice(Tone::Good, &html! { p { "You are signed out, on every replica." } }),
        Message::Refused => {
            notice(Tone::Bad, &html! { p { "That is not the token of an operator or a viewer." } })
        }
        Message::Expired => notice(
            Tone::Warning,
            &html! { p { "The form was too old, or the browser takes no cookies. Try again." } },
        ),
        Message::TooMany(delay) => {
            let seconds = delay.as_secs() + 1;
            notice(
                Tone::Bad,
                &html! { p { "Too many attempts from your address. Try again in " (seconds) " s." } },
            )
        }
    }
}
