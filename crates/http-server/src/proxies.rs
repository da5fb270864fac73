//! Determines the client of a request when proxies are in between.
//!
//! `X-Forwarded-For` and `X-Forwarded-Proto` count only if the peer of the connection is a trusted proxy: any
//! client can write them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::request::Parts;
use ipnet::IpNet;

/// The header in which each proxy adds the address of its peer.
const X_FORWARDED_FOR: &str = "x-forwarded-for";
/// The header in which a proxy reports the protocol of the request that it received.
const X_FORWARDED_PROTO: &str = "x-forwarded-proto";

/// The other end of the connection of a request. The listener adds it to the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Address; `None` if the connection is not a TCP connection.
    pub addr: Option<IpAddr>,
    /// True if the connection is encrypted.
    pub tls: bool,
}

/// The client of a request, as far as it can be determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Address; `None` if it is unknown.
    pub addr: Option<IpAddr>,
    /// True if the client uses HTTPS.
    pub https: bool,
}

/// The networks of the proxies that are trusted. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

/// The text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is neither a network such as 10.0.0.0/8 or fd00::/8 nor an address")]
pub struct InvalidNetwork(String);

/// Parses networks and addresses separated by commas; an empty text means none.
impl FromStr for TrustedProxies {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let parts = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        let network = |part: &str| {
            let parsed = part.parse().or_else(|_| part.parse::<IpAddr>().map(IpNet::from));
            parsed.map_err(|_| InvalidNetwork(part.to_owned()))
        };
        parts.map(network).collect::<Result<Vec<_>, _>>().map(|networks| Self(networks.into()))
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks: Vec<String> = self.0.iter().map(IpNet::to_string).collect();
        f.write_str(&networks.join(","))
    }
}

impl TrustedProxies {
    fn contains(&self, addr: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&addr))
    }

    /// The client of the request: the peer, or, if the peer is a trusted proxy, the last address of
    /// `X-Forwarded-For` that is not a trusted proxy.
    pub fn client(&self, head: &Parts) -> Client {
        let peer = head.extensions.get::<Peer>().copied().unwrap_or(Peer { addr: None, tls: false });
        let Some(addr) = peer.addr.map(|addr| addr.to_canonical()) else {
            return Client { addr: None, https: peer.tls };
        };
        if !self.contains(addr) {
            return Client { addr: Some(addr), https: peer.tls };
        }
        let (client, hops) = self.forwarded(addr, &head.headers);
        // The value that was added together with the entry of the client. A proxy may also replace the values
        // before its own: then the first remaining value counts.
        let proto = values_from_end(&head.headers, X_FORWARDED_PROTO).take(hops.max(1)).last();
        let https = proto.map_or(peer.tls, |proto| proto.eq_ignore_ascii_case("https"));
        Client { addr: Some(client), https }
    }

    /// Finds the client behind `proxy`. Each proxy appends the address of its peer: from the end, entries are
    /// credible as long as the proxies that wrote them are trusted. An entry that is not an address ends the
    /// walk, and the proxy that passed it on counts as the client. Also returns the number of entries that
    /// were used, from the end.
    fn forwarded(&self, proxy: IpAddr, headers: &HeaderMap) -> (IpAddr, usize) {
        let (mut client, mut hops) = (proxy, 0);
        for entry in values_from_end(headers, X_FORWARDED_FOR) {
            let Some(addr) = address(entry) else { break };
            (client, hops) = (addr, hops + 1);
            if !self.contains(client) {
                break;
            }
        }
        (client, hops)
    }
}

/// The values of a list header, the last one first. Several headers of the same name are one list.
fn values_from_end<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    let lists = headers.get_all(name).iter().rev().map(|list| list.to_str().unwrap_or(""));
    lists.flat_map(|list| list.rsplit(',')).map(str::trim)
}

/// Parses an address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let addr = bracketed.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|addr| addr.ip()));
    addr.map(|addr: IpAddr| addr.to_canonical())
}

/// The address that stands for one client: for IPv6 the /64 network, because one client may have all its
/// addresses.
pub fn client_network(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => addr,
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    /// The client of a request from `peer`, where 10.0.0.0/8 and fd00::/8 are proxies.
    fn client(peer: &str, headers: &[(&str, &str)]) -> (String, bool) {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut head, ()) = request.body(()).expect("a request").into_parts();
        head.extensions.insert(Peer { addr: Some(peer.parse().expect("an address")), tls: false });
        let client = "10.0.0.0/8, fd00::/8".parse::<TrustedProxies>().expect("networks").client(&head);
        (client.addr.expect("an address").to_string(), client.https)
    }

    #[test]
    fn what_a_peer_that_is_no_trusted_proxy_forwards_does_not_count() {
        let forged = [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "https")];
        assert_eq!(client("198.51.100.7", &forged), ("198.51.100.7".to_owned(), false));
    }

    #[test]
    fn behind_trusted_proxies_the_last_address_that_is_none_of_them_is_the_client() {
        for (header, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("203.0.113.9, 192.0.2.1", "192.0.2.1"),
            ("203.0.113.9, 192.0.2.1, 10.0.0.2", "192.0.2.1"),
            ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("[2001:db8::1]:4711,fd00::2", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.1, unknown, 10.0.0.2", "10.0.0.2"),
            ("", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", header)]).0, expected, "{header}");
        }
    }

    #[test]
    fn several_headers_are_read_as_one_list() {
        let headers = [("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "192.0.2.1, 10.0.0.2")];
        assert_eq!(client("10.0.0.1", &headers).0, "192.0.2.1");
    }

    #[test]
    fn a_trusted_proxy_says_whether_the_client_uses_https() {
        for (header, https) in
            [("https", true), ("HTTPS", true), ("http, https", true), ("https, http", false), ("", false)]
        {
            assert_eq!(client("10.0.0.1", &[("x-forwarded-proto", header)]).1, https, "{header}");
        }
    }

    #[test]
    fn the_protocol_is_that_of_the_hop_whose_address_is_the_client() {
        for (addresses, protocols, https) in [
            ("192.0.2.1, 10.0.0.2", "https, http", true),
            ("192.0.2.1, 10.0.0.2", "http, https", false),
            ("203.0.113.9, 192.0.2.1, 10.0.0.2", "https, http, https", false),
            ("203.0.113.9, 192.0.2.1", "https, http", false),
            ("192.0.2.1, 10.0.0.2", "https", true),
            ("unknown", "https, http", false),
        ] {
            let headers = [("x-forwarded-for", addresses), ("x-forwarded-proto", protocols)];
            assert_eq!(client("10.0.0.1", &headers).1, https, "{addresses}: {protocols}");
        }
    }

    #[test]
    fn over_an_encrypted_connection_a_trusted_proxy_still_says_what_the_client_uses() {
        let proxies: TrustedProxies = "10.0.0.0/8".parse().expect("networks");
        let addr = Some("10.0.0.1".parse().expect("an address"));
        for (header, https) in [(Some("http"), false), (Some("https"), true), (None, true)] {
            let request = header
                .iter()
                .fold(Request::builder(), |request, header| request.header("x-forwarded-proto", *header));
            let (mut head, ()) = request.body(()).expect("a request").into_parts();
            head.extensions.insert(Peer { addr, tls: true });
            assert_eq!(proxies.client(&head).https, https, "{header:?}");
        }
    }

    #[test]
    fn an_encrypted_connection_is_https_if_its_peer_is_no_trusted_proxy() {
        for addr in [None, Some("198.51.100.7".parse().expect("an address"))] {
            let (mut head, ()) = Request::new(()).into_parts();
            head.extensions.insert(Peer { addr, tls: true });
            assert_eq!(TrustedProxies::default().client(&head), Client { addr, https: true });
        }
    }

    #[test]
    fn networks_are_read_and_shown_and_an_address_is_one_of_its_own() {
        let shown = |text: &str| text.parse::<TrustedProxies>().map(|proxies| proxies.to_string());
        assert_eq!(shown(""), Ok(String::new()));
        assert_eq!(shown("10.0.0.0/8, 192.0.2.1,::1"), Ok("10.0.0.0/8,192.0.2.1/32,::1/128".to_owned()));
        for wrong in ["10.0.0.0/33", "proxy", "10.0.0.0/8,"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_with_an_ipv4_address_mapped_to_ipv6_is_found_among_ipv4_networks() {
        assert_eq!(client("::ffff:10.0.0.1", &[("x-forwarded-for", "192.0.2.1")]).0, "192.0.2.1");
    }
}
