//! The user who is signed in, and the secrets of the session: the cookie and the token of forms.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use domain::personal::Sight;
use domain::ports::SessionHash;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The lifetime of a session.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(8 * 3_600);
/// The name of the form field with the token of the session.
pub(crate) const FORM_TOKEN: &str = "form_token";
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

/// The user who is signed in: a viewer or an operator. A handler of a page receives it by extraction.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// The name of the token.
    pub(crate) name: Arc<str>,
    /// The token for the forms of the page.
    pub(crate) form_token: FormToken,
    /// The hash of the session's id.
    pub(crate) session: SessionHash,
    /// The part of documents that the pages show.
    pub(crate) sight: Sight,
    /// True for an operator.
    pub(crate) operates: bool,
}

/// An operator who is signed in. Only a handler that may change something extracts it, and only with it a
/// form can be rendered: so a viewer reaches neither.
#[derive(Clone, Debug)]
pub(crate) struct Operator(Visitor);

impl Visitor {
    /// The visitor as an operator; `None` for a viewer.
    pub(crate) fn operator(&self) -> Option<Operator> {
        self.operates.then(|| Operator(self.clone()))
    }
}

impl Deref for Operator {
    type Target = Visitor;

    fn deref(&self) -> &Visitor {
        &self.0
    }
}
