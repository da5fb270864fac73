//! The address at which the health of a process can be requested.

use std::path::PathBuf;

use super::http_addr::HttpAddr;
use super::knobs::{CONNECTOR_SOCKET, NOTIFICATION_INTERNAL_HTTP_ADDR, STATE_PROXY_HTTP_ADDR};
use super::reader::{Reader, Section};

/// The listener that serves the probes of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthTarget {
    /// A TCP address.
    Tcp(HttpAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The address of the probes of `serve` and `relay`.
#[derive(Debug)]
pub struct ServiceHealth(pub HealthTarget);

impl Section for ServiceHealth {
    fn read(reader: &mut Reader) -> Option<Self> {
        let addr = reader.get(&NOTIFICATION_INTERNAL_HTTP_ADDR)?;
        has_port(reader, NOTIFICATION_INTERNAL_HTTP_ADDR.name, &addr)?;
        Some(Self(HealthTarget::Tcp(addr)))
    }
}

/// The address of the probes of `state`: its socket, else its port.
#[derive(Debug)]
pub struct StateHealth(pub HealthTarget);

impl Section for StateHealth {
    fn read(reader: &mut Reader) -> Option<Self> {
        let socket = reader.get::<Option<PathBuf>>(&CONNECTOR_SOCKET);
        let addr = reader.get::<Option<HttpAddr>>(&STATE_PROXY_HTTP_ADDR);
        match (socket?, addr?) {
            (Some(socket), _) => Some(Self(HealthTarget::Unix(socket))),
            (None, Some(addr)) => {
                has_port(reader, STATE_PROXY_HTTP_ADDR.name, &addr)?;
                Some(Self(HealthTarget::Tcp(addr)))
            }
            (None, None) => {
                let text = format!("is not set, and neither is {}", STATE_PROXY_HTTP_ADDR.name);
                reader.problem(CONNECTOR_SOCKET.name, text);
                None
            }
        }
    }
}

/// Notes a problem if the port is 0: the system chooses the port then, and another process cannot find it.
fn has_port(reader: &mut Reader, variable: &'static str, addr: &HttpAddr) -> Option<()> {
    if addr.port == 0 {
        let text = "has port 0: the process listens on a free port, which no other process knows";
        reader.problem(variable, text);
        return None;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    fn vars(vars: &[(&str, &str)]) -> Vec<(String, String)> {
        vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_service_is_asked_where_it_listens_and_needs_no_other_variable() {
        let tcp = |text: &str| HealthTarget::Tcp(text.parse().expect("an address"));
        let load = |given: &[_]| load::<ServiceHealth>(vars(given)).map(|loaded| loaded.config.0);
        assert_eq!(load(&[]).expect("the default"), tcp(":8092"));
        let given = ("NOTIFICATION_INTERNAL_HTTP_ADDR", "10.0.0.1:9000");
        assert_eq!(load(&[given]).expect("it is right"), tcp("10.0.0.1:9000"));
        let wrong = load(&[("NOTIFICATION_INTERNAL_HTTP_ADDR", ":0")]).expect_err("the port is not known");
        assert!(wrong.to_string().contains("NOTIFICATION_INTERNAL_HTTP_ADDR has port 0"), "{wrong}");
    }

    #[test]
    fn the_state_store_is_asked_on_its_socket_else_on_its_port() {
        let load = |given: &[_]| load::<StateHealth>(vars(given)).map(|loaded| loaded.config.0);
        let (socket, port) = (("CONNECTOR_SOCKET", "/run/state.sock"), ("STATE_PROXY_HTTP_ADDR", ":8090"));
        let unix = HealthTarget::Unix("/run/state.sock".into());
        assert_eq!(load(&[socket, port]).expect("both are right"), unix);
        let tcp = HealthTarget::Tcp(":8090".parse().expect("an address"));
        assert_eq!(load(&[port]).expect("it is right"), tcp);
        let wrong = load(&[]).expect_err("there is nothing to ask");
        assert!(wrong.to_string().contains("CONNECTOR_SOCKET is not set"), "{wrong}");
    }
}
