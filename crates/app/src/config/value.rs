//! The types of variables: how each is parsed from text, and shown by `check-config`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http_server::TrustedProxies;
use outbox::{ChannelName, RelayId};
use pg::{Dsn, DsnError};
use url::Url;

use super::http_addr::HttpAddr;
use super::knob::Takes;
use super::redis_addr::RedisAddr;
use super::replica::ReplicaId;
use super::secret::Secret;
use super::{duration, split_list};

/// A type of which a variable has a value.
pub(super) trait Value: Sized {
    /// Parses the text of a variable that accepts `takes`. The error is the reason, without the value.
    fn parse(text: &str, takes: &Takes) -> Result<Self, String>;

    /// Formats the value for `check-config`. Secrets are masked.
    fn show(&self) -> String;

    /// The items of a list of such values, trimmed. Empty ones are left out.
    fn split(text: &str) -> Vec<&str> {
        split_list(text).collect()
    }
}

/// An empty text means that there is none.
impl<T: Value> Value for Option<T> {
    fn parse(text: &str, takes: &Takes) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::parse(text, takes).map(Some) }
    }

    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
}

/// Items between commas, without duplicates.
impl<T: Value> Value for Vec<T> {
    fn parse(text: &str, takes: &Takes) -> Result<Self, String> {
        let items = T::split(text);
        let is_first = |(index, item): &(usize, &&str)| !items[..*index].contains(item);
        let parse = |(index, item): (usize, &&str)| {
            let reason = |reason| format!("number {} cannot be used: {reason}", index + 1);
            T::parse(item, takes).map_err(reason)
        };
        items.iter().enumerate().filter(is_first).map(parse).collect()
    }

    fn show(&self) -> String {
        self.iter().map(T::show).collect::<Vec<_>>().join(",")
    }
}

impl Value for Duration {
    fn parse(text: &str, takes: &Takes) -> Result<Self, String> {
        let value = duration::parse(text).map_err(|error| error.to_string())?;
        match *takes {
            Takes::Duration(min, _) if value < min => Err("it is too short".to_owned()),
            Takes::Duration(_, max) if value > max => Err("it is too long".to_owned()),
            _ => Ok(value),
        }
    }

    fn show(&self) -> String {
        duration::format(*self)
    }
}

fn parse_number<N: TryFrom<u64>>(text: &str, takes: &Takes) -> Result<N, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a whole number".to_owned());
    }
    let value: u64 = text.parse().map_err(|_| "it is too large")?;
    match *takes {
        Takes::Number(min, _) if value < min => Err("it is too small".to_owned()),
        Takes::Number(_, max) if value > max => Err("it is too large".to_owned()),
        _ => N::try_from(value).map_err(|_| "it is too large".to_owned()),
    }
}

/// A share from 0 to 1.
fn parse_share(text: &str, _: &Takes) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) => Err("it is out of range"),
        Err(_) => Err("not a number"),
    }
}

/// One of the words of its variable, in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(&'static str);

impl Word {
    /// True if it is this word.
    pub(super) fn is(self, word: &str) -> bool {
        self.0 == word
    }

    /// The word.
    pub(super) fn as_str(self) -> &'static str {
        self.0
    }
}

impl Value for Word {
    fn parse(text: &str, takes: &Takes) -> Result<Self, String> {
        let Takes::Word(words) = takes else { return Err("it has no list of words".to_owned()) };
        let word = words.iter().find(|word| word.eq_ignore_ascii_case(text));
        word.map(|word| Self(word)).ok_or_else(|| "it is not known".to_owned())
    }

    fn show(&self) -> String {
        self.0.to_owned()
    }
}

fn parse_text(text: &str, takes: &Takes) -> Result<String, String> {
    takes.check(text).map(|()| text.to_owned())
}

impl Value for PathBuf {
    fn parse(text: &str, takes: &Takes) -> Result<Self, String> {
        takes.check(text)?;
        Ok(Self::from(text))
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Value for Dsn {
    fn parse(text: &str, _: &Takes) -> Result<Self, String> {
        Self::parse(text).map_err(|error| match error {
            // The source of the error may contain a part of the connection string.
            DsnError::Syntax(_) => "not a connection string".to_owned(),
            other => domain::ports::error_chain(&other),
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }

    /// Splits at commas that precede another `postgres://`. Other commas separate the hosts of one
    /// connection string.
    fn split(text: &str) -> Vec<&str> {
        let begins = |rest: &str| rest.starts_with("postgres://") || rest.starts_with("postgresql://");
        let (mut dsns, mut start) = (Vec::new(), 0);
        for (comma, _) in text.match_indices(',') {
            if begins(text[comma + 1..].trim_start()) {
                dsns.push(text[start..comma].trim());
                start = comma + 1;
            }
        }
        dsns.push(text[start..].trim());
        dsns.retain(|dsn| !dsn.is_empty());
        dsns
    }
}

/// An absolute `http` or `https` URL without credentials.
fn parse_url(text: &str, takes: &Takes) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("not a URL ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") || !text.contains("://") {
        return Err("it does not begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds credentials, which are not used".to_owned());
    }
    takes.check(text).map(|()| url)
}

/// Implements [`Value`] for types with `Display`. The reason is the error of the parsing function, or the
/// given text.
macro_rules! displayed {
    ($($type:ty: |$text:ident, $takes:pat_param| $parsed:expr;)*) => {$(
        impl Value for $type {
            fn parse($text: &str, $takes: &Takes) -> Result<Self, String> {
                $parsed.map_err(|reason| reason.to_string())
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
displayed! {
    u16: |text, takes| parse_number(text, takes);
    u32: |text, takes| parse_number(text, takes);
    u64: |text, takes| parse_number(text, takes);
    usize: |text, takes| parse_number(text, takes);
    f64: |text, takes| parse_share(text, takes);
    String: |text, takes| parse_text(text, takes);
    Url: |text, takes| parse_url(text, takes);
    Secret: |text, _| Ok::<_, &str>(Self::new(text));
    HttpAddr: |text, _| Self::from_str(text);
    RedisAddr: |text, _| Self::from_str(text);
    TrustedProxies: |text, _| Self::from_str(text);
    ReplicaId: |text, _| Self::parse(text);
    RelayId: |text, _| Self::parse(text).map_err(|_| "it is too long or holds another character");
    outbox::TableName: |text, _| Self::parse(text).map_err(|_| "not a valid table name");
    state::TableName: |text, _| Self::parse(text).map_err(|_| "not a table name");
}

impl Value for ChannelName {
    fn parse(text: &str, _: &Takes) -> Result<Self, String> {
        Self::parse(text).map_err(|_| "it is too long".to_owned())
    }

    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::knobs::NOTIFICATION_POSTGRES_REPLICA_DSNS;

    #[test]
    fn a_comma_between_hosts_does_not_end_a_connection_string() {
        assert_eq!(
            Dsn::split("postgres://a,b/x, postgresql://c/x"),
            ["postgres://a,b/x", "postgresql://c/x"]
        );
        assert_eq!(Dsn::split("host=a,b dbname=x"), ["host=a,b dbname=x"]);
        assert_eq!(Dsn::split(""), Vec::<&str>::new());
    }

    #[test]
    fn replicas_are_shown_without_passwords() {
        let parse = |text: &str| Vec::<Dsn>::parse(text, &NOTIFICATION_POSTGRES_REPLICA_DSNS.takes);
        let shown =
            parse("postgres://me:s3cret@a/x,postgres://me@b/x").expect("two connection strings").show();
        assert_eq!(shown, "postgres://me:****@a:5432/x,postgres://me@b:5432/x");
        let error = parse("postgres://me:s3cret@a/x,postgres://me:s3cret@b:port/x").expect_err("a bad port");
        assert!(error.starts_with("number 2") && !error.contains("s3cret"), "{error}");
    }
}
