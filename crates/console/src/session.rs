//! Sessions of operators: the cookie, the check in front of every page, and the token of forms.
//!
//! The id of a session is 256 random bits in a cookie; the store contains only its SHA-256. A session is
//! valid while its token is in the tokens file with the role `operator`. So it ends on every replica when its
//! row is deleted, when its lifetime is over, and when the token is removed (ADR 0039).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use domain::ports::{SessionHash, SessionStore, StoreError, TokenHash};
use http_server::admit_known_client;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use url::form_urlencoded;

use crate::deadline::SignedIn;
use crate::error::PageError;
use crate::forms::Form;
use crate::layout;
use crate::ports::{Console, Ports};

/// The lifetime of a session.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(8 * 3_600);
/// The path of the sign-in.
pub(crate) const SIGN_IN_PATH: &str = "/console/sign-in";
/// The longest path that a sign-in returns to, in bytes.
const MAX_NEXT_BYTES: usize = 2_048;
/// The label of the hash that makes the token of forms.
const FORM_LABEL: &[u8] = b"notification console form\0";
/// The label of the hash that makes the proof of a text.
const PROOF_LABEL: &[u8] = b"notification console proof\0";
/// The length of a secret in a cookie, in hexadecimal digits.
const SECRET_DIGITS: usize = 64;

/// A cookie of the console. With HTTPS its name has the prefix `__Host-`, so that no other host and no page
/// without HTTPS can set it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cookie {
    /// The id of the session.
    Session,
    /// The secret of the sign-in form, before there is a session.
    SignIn,
}

impl Cookie {
    fn name(self, https: bool) -> &'static str {
        match (self, https) {
            (Self::Session, true) => "__Host-notification_console",
            (Self::Session, false) => "notification_console",
            (Self::SignIn, true) => "__Host-notification_console_sign_in",
            (Self::SignIn, false) => "notification_console_sign_in",
        }
    }

    /// Reads the secret from the cookies of a request.
    pub(crate) fn read(self, headers: &HeaderMap, https: bool) -> Option<Secret> {
        let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut named = pairs.filter(|(name, _)| *name == self.name(https)).map(|(_, value)| value);
        let is_secret =
            |value: &&str| value.len() == SECRET_DIGITS && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        named.find(is_secret).map(|value| Secret(value.to_owned()))
    }

    /// The header that sets the cookie. `__Host-` requires the path `/`; otherwise the cookie is sent only to
    /// the console.
    pub(crate) fn set(self, secret: &Secret, https: bool) -> HeaderValue {
        self.header(&secret.0, SESSION_LIFETIME, https)
    }

    /// The header that removes the cookie.
    pub(crate) fn clear(self, https: bool) -> HeaderValue {
        self.header("", Duration::ZERO, https)
    }

    fn header(self, value: &str, age: Duration, https: bool) -> HeaderValue {
        let (path, secure) = if https { ("/", "; Secure") } else { ("/console/", "") };
        let (name, age) = (self.name(https), age.as_secs());
        let text = format!("{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
        // Cannot fail: the value is hexadecimal digits.
        HeaderValue::try_from(text).expect("a cookie is ASCII")
    }
}

/// A secret in a cookie: the id of a session, or that of a sign-in form.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

impl Secret {
    /// Generates a secret.
    pub(crate) fn new(ids: &dyn ambient::Tokens) -> Self {
        Self(hex::encode([ids.next(), ids.next()].concat()))
    }

    /// The hash under which the store keeps the session.
    pub(crate) fn hash(&self) -> SessionHash {
        SessionHash(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The token of the forms that belong to the secret. It does not reveal the secret.
    pub(crate) fn form_token(&self) -> FormToken {
        FormToken(hex::encode(Sha256::new().chain_update(FORM_LABEL).chain_update(&self.0).finalize()))
    }
}

/// The token in each form of a session, so that no other site can send one.
#[derive(Clone, Debug)]
pub(crate) struct FormToken(pub(crate) String);

impl FormToken {
    /// Returns a proof that the service wrote `text` for this session. The text is hashed before it is
    /// combined, so that the proof of a text cannot be extended to that of a longer one.
    pub(crate) fn proof(&self, text: &str) -> String {
        let text = Sha256::digest(text.as_bytes());
        hex::encode(
            Sha256::new().chain_update(PROOF_LABEL).chain_update(&self.0).chain_update(text).finalize(),
        )
    }

    /// Returns true if `proof` is the proof of `text`.
    pub(crate) fn proves(&self, text: &str, proof: &str) -> bool {
        self.proof(text).as_bytes().ct_eq(proof.as_bytes()).into()
    }
}

/// The operator who is signed in. A handler of a page receives it by extraction.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    /// The name of the token.
    pub(crate) name: Arc<str>,
    /// The token for the forms of the page.
    pub(crate) form_token: FormToken,
    /// The hash of the session's id.
    pub(crate) session: SessionHash,
}

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
