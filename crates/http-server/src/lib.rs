//! The HTTP listener that every HTTP interface of the service shares.
//!
//! [`serve`] accepts a bounded number of connections, from TCP ([`bind`]) or a Unix socket ([`bind_unix`]),
//! with TLS if it has a certificate, and passes each request to an [`axum::Router`] under the limits of
//! [`ListenerSettings`]. The crate also contains the parts that interfaces with tokens and JSON bodies have
//! in common: [`problem`], [`tokens`], [`JsonBody`], [`RequestId`] and [`Started`].
//!
//! A request passes these checks in this order: path (404), method (405), token (401), rights of the token
//! (403), rate limit (429), and media type (415), length (413) and form (400) of the body. The router makes
//! the first two, the [`TokenGuard`](tokens::TokenGuard) the next three, and the body extractors the last
//! three.
//!
//! What it deliberately lacks: routes, knowledge of notifications, metrics and the environment. The caller
//! provides them.

mod body;
mod budget;
mod class;
mod connection;
pub mod data_age;
mod exchange;
mod frames;
mod framing;
mod head;
mod listener;
pub mod problem;
mod proxies;
mod reload;
mod request_id;
mod service;
mod socket;
mod sparse_log;
mod stall;
mod started;
mod stream;
mod timeouts;
mod tls;
pub mod tokens;
mod unix;

pub use body::{
    BodyError, BodyLimit, JsonBody, JsonText, Object, has_media_type, is_compressed, parse_apart, read_body,
};
pub use exchange::{Occupied, admit_known_client, name_route};
pub use listener::serve;
pub use proxies::{Client, InvalidNetwork, Peer, TrustedProxies, client_network};
pub use reload::ReloadError;
pub use request_id::{RequestId, X_REQUEST_ID};
pub use service::{Answered, ListenerRefusal, ListenerSettings, ResponseObserver};
pub use socket::{ConnectionSource, bind};
pub use started::Started;
pub use timeouts::Timeouts;
pub use tls::Tls;
pub use unix::{BindUnixError, BoundUnix, MAX_SOCKET_PATH_BYTES, SocketFile, bind_unix, check_socket_path};
