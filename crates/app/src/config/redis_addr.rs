//! The address of a Redis server.

use std::fmt;
use std::str::FromStr;

use super::http_addr::split_host_port;

/// `host:port`, or `rediss://host:port` for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisAddr {
    /// A host name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
    /// True if the connection uses TLS.
    pub tls: bool,
}

impl FromStr for RedisAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('@') {
            return Err("it holds credentials, which belong into NOTIFICATION_REDIS_PASSWORD".to_owned());
        }
        let (tls, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("rediss", rest)) => (true, rest),
            Some((scheme, _)) => return Err(format!("{scheme}:// is not a known scheme")),
        };
        let (host, port) = split_host_port(rest)?;
        if host.is_empty() {
            return Err("it names no host".to_owned());
        }
        match port {
            0 => Err("port 0 cannot be connected to".to_owned()),
            _ => Ok(Self { host: host.to_owned(), port, tls }),
        }
    }
}

impl fmt::Display for RedisAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "rediss://" } else { "" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}{open}{}{close}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_is_written() {
        for text in [
            "redis:6379",
            "10.0.0.1:6379",
            "rediss://redis.example.com:6380",
            "[::1]:6379",
            "rediss://[::1]:1",
        ] {
            assert_eq!(text.parse::<RedisAddr>().map(|addr| addr.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "redis",
            "redis:",
            ":6379",
            "redis:0",
            "redis:65536",
            "redis:+1",
            "::1:6379",
            "redis://redis:6379",
            "rediss://redis:6379/0",
            "a b:1",
        ] {
            assert!(text.parse::<RedisAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn credentials_in_an_address_are_refused_and_not_repeated() {
        let error = "rediss://default:hunter2@redis:6379".parse::<RedisAddr>().expect_err("has credentials");
        assert!(error.contains("NOTIFICATION_REDIS_PASSWORD") && !error.contains("hunter2"), "{error}");
    }
}
