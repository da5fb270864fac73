//! The address of an HTTP listener.

use std::fmt;
use std::str::FromStr;

/// `host:port`, or `:port` for every interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddr {
    /// A host name or an address; `None` for every interface.
    pub host: Option<String>,
    /// The port; 0 lets the system choose one.
    pub port: u16,
}

impl FromStr for HttpAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = split_host_port(text)?;
        Ok(Self { host: (!host.is_empty()).then(|| host.to_owned()), port })
    }
}

impl fmt::Display for HttpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_deref() {
            Some(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            host => write!(f, "{}:{}", host.unwrap_or_default(), self.port),
        }
    }
}

/// Splits off the port. The host has no IPv6 brackets and may be empty.
pub(super) fn split_host_port(text: &str) -> Result<(&str, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("it has no port")?;
    let number = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let port = number.ok_or_else(|| format!("{port:?} is not a port"))?;
    let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => address,
        None if host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) => host,
        _ => return Err(format!("{host:?} is not a host (write an IPv6 address in brackets)")),
    };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_is_written() {
        for text in [":8092", ":0", "127.0.0.1:8092", "localhost:80", "[::]:8092"] {
            assert_eq!(text.parse::<HttpAddr>().map(|addr| addr.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "8092",
            "localhost",
            "localhost:",
            ":65536",
            ":-1",
            "::8092",
            "[::1:80",
            "[x]:80",
            "http://localhost:80",
        ] {
            assert!(text.parse::<HttpAddr>().is_err(), "{text}");
        }
    }
}
