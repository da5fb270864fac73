//! The connection to Redis.

use std::time::Duration;

use store_redis::{Password, Topology};

use super::knob::Knob;
use super::knobs::*;
use super::reader::{Reader, Section};
use super::redis_addr::RedisAddr;
use super::secret::Secret;
use super::section::section;

section! {
    /// The Redis with the streams, the leases and the cached checkpoint.
    #[derive(Debug, Clone)]
    pub struct Redis {
        /// The servers.
        pub topology: Topology,
        /// The password of the default user.
        pub password: Secret = NOTIFICATION_REDIS_PASSWORD,
        /// The number of the logical database.
        pub db: u16 = NOTIFICATION_REDIS_DB,
        /// The replicas that the operator knows, to compare with those of the server.
        pub replicas: Vec<RedisAddr> = NOTIFICATION_REDIS_REPLICA_ADDRS,
        /// The deadline of one call.
        pub operation_timeout: Duration = NOTIFICATION_REDIS_OPERATION_TIMEOUT,
    }
}

impl Redis {
    /// The password of the default user, for a client.
    pub fn client_password(&self) -> Option<Password> {
        to_password(&self.password)
    }
}

fn to_password(secret: &Secret) -> Option<Password> {
    secret.expose().map(|password| Password(password.to_owned()))
}

impl Section for Topology {
    fn read(reader: &mut Reader) -> Option<Self> {
        let single = reader.get::<Option<RedisAddr>>(&NOTIFICATION_REDIS_MASTER_ADDR);
        let sentinels = reader.get::<Vec<RedisAddr>>(&NOTIFICATION_REDIS_SENTINEL_ADDRS);
        let master = reader.get::<Option<String>>(&NOTIFICATION_REDIS_SENTINEL_MASTER);
        let password = reader.get::<Secret>(&NOTIFICATION_REDIS_SENTINEL_PASSWORD);
        let nodes = reader.get::<Vec<RedisAddr>>(&NOTIFICATION_REDIS_CLUSTER_ADDRS);
        let db = reader.get::<u16>(&NOTIFICATION_REDIS_DB);
        // Every problem is noted, also those of variables beside one that cannot be used.
        let given = Given {
            single: single?,
            sentinels: sentinels?,
            master: master?,
            password: password?,
            nodes: nodes?,
        };
        given.check(reader, db?).then(|| given.topology()).flatten()
    }
}

/// The values of the variables that name servers.
struct Given {
    single: Option<RedisAddr>,
    sentinels: Vec<RedisAddr>,
    master: Option<String>,
    password: Secret,
    nodes: Vec<RedisAddr>,
}

impl Given {
    /// Notes what does not fit together; returns false if something does not.
    fn check(&self, reader: &mut Reader, db: u16) -> bool {
        let problems = [
            self.check_choice(),
            self.check_sentinels(),
            check_tls(&NOTIFICATION_REDIS_SENTINEL_ADDRS, &self.sentinels),
            check_tls(&NOTIFICATION_REDIS_CLUSTER_ADDRS, &self.nodes),
            (db != 0 && !self.nodes.is_empty()).then(|| {
                let text = "and NOTIFICATION_REDIS_CLUSTER_ADDRS is set: a Cluster has database 0 only";
                (&NOTIFICATION_REDIS_DB, format!("is {db}, {text}"))
            }),
        ];
        let fits = problems.iter().all(Option::is_none);
        for (knob, text) in problems.into_iter().flatten() {
            reader.problem(knob.name, text);
        }
        fits
    }

    /// True if a variable is set that is about the Sentinels and does not name them.
    fn is_of_sentinels(&self) -> bool {
        self.master.is_some() || self.password.expose().is_some()
    }

    /// Checks that one variable names servers.
    fn check_choice(&self) -> Option<(&'static Knob, String)> {
        let named = [
            (self.single.is_some(), &NOTIFICATION_REDIS_MASTER_ADDR),
            (!self.sentinels.is_empty(), &NOTIFICATION_REDIS_SENTINEL_ADDRS),
            (!self.nodes.is_empty(), &NOTIFICATION_REDIS_CLUSTER_ADDRS),
        ];
        let named: Vec<&Knob> =
            named.into_iter().filter(|(is_set, _)| *is_set).map(|(_, knob)| knob).collect();
        match named.as_slice() {
            // The problem is that the Sentinels are not named.
            [] if self.is_of_sentinels() => None,
            [] => Some((&NOTIFICATION_REDIS_MASTER_ADDR, NO_SERVER.to_owned())),
            [_] => None,
            [first, others @ ..] => {
                let others: Vec<&str> = others.iter().map(|knob| knob.name).collect();
                Some((first, format!("is set, and so is {}: set one of them", others.join(" and "))))
            }
        }
    }

    /// Checks that the Sentinels and the name of their primary are both set, or nothing about them.
    fn check_sentinels(&self) -> Option<(&'static Knob, String)> {
        let (set, absent) = match (self.sentinels.is_empty(), &self.master) {
            (false, Some(_)) => return None,
            (false, None) => (&NOTIFICATION_REDIS_SENTINEL_ADDRS, NOTIFICATION_REDIS_SENTINEL_MASTER.name),
            (true, Some(_)) => (&NOTIFICATION_REDIS_SENTINEL_MASTER, NOTIFICATION_REDIS_SENTINEL_ADDRS.name),
            (true, None) if self.is_of_sentinels() => {
                (&NOTIFICATION_REDIS_SENTINEL_PASSWORD, NOTIFICATION_REDIS_SENTINEL_ADDRS.name)
            }
            (true, None) => return None,
        };
        Some((set, format!("is set, and {absent} is not")))
    }

    fn topology(self) -> Option<Topology> {
        let texts = |addrs: &[RedisAddr]| addrs.iter().map(RedisAddr::to_string).collect();
        Some(match (self.single, self.master) {
            (Some(addr), _) => Topology::Single(addr.to_string()),
            (None, Some(master)) => Topology::Sentinel {
                addrs: texts(&self.sentinels),
                master,
                password: to_password(&self.password),
            },
            (None, None) => Topology::Cluster { addrs: texts(&self.nodes) },
        })
    }
}

/// Checks that all servers of a list use TLS, or none.
fn check_tls(knob: &'static Knob, addrs: &[RedisAddr]) -> Option<(&'static Knob, String)> {
    let tls = addrs.iter().filter(|addr| addr.tls).count();
    let is_mixed = tls > 0 && tls < addrs.len();
    is_mixed
        .then(|| (knob, "has addresses with and without rediss://: all servers use TLS, or none".to_owned()))
}

/// The problem that no variable names a server.
const NO_SERVER: &str = "is required and not set, and neither is NOTIFICATION_REDIS_SENTINEL_ADDRS nor \
                         NOTIFICATION_REDIS_CLUSTER_ADDRS: set one of them";
