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
        let mut problems = Vec::new();
        let mut note = |knob: &Knob, text: &str| problems.push((knob.name, text.to_owned()));
        let of_sentinel = self.master.is_some() || self.password.expose().is_some();
        let chosen: Vec<&Knob> = [
            (self.single.is_some(), &NOTIFICATION_REDIS_MASTER_ADDR),
            (!self.sentinels.is_empty(), &NOTIFICATION_REDIS_SENTINEL_ADDRS),
            (!self.nodes.is_empty(), &NOTIFICATION_REDIS_CLUSTER_ADDRS),
        ]
        .into_iter()
        .filter_map(|(is_set, knob)| is_set.then_some(knob))
        .collect();
        match chosen.as_slice() {
            [] if of_sentinel => {}
            [] => note(&NOTIFICATION_REDIS_MASTER_ADDR, NO_SERVER),
            [_] => {}
            [first, others @ ..] => {
                let others: Vec<&str> = others.iter().map(|knob| knob.name).collect();
                note(first, &format!("is set, and so is {}: set one of them", others.join(" and ")));
            }
        }
        if self.sentinels.is_empty() && of_sentinel {
            let knob = if self.master.is_some() {
                &NOTIFICATION_REDIS_SENTINEL_MASTER
            } else {
                &NOTIFICATION_REDIS_SENTINEL_PASSWORD
            };
            note(knob, "is set, and NOTIFICATION_REDIS_SENTINEL_ADDRS is not: set both or none");
        }
        if !self.sentinels.is_empty() && self.master.is_none() {
            note(
                &NOTIFICATION_REDIS_SENTINEL_ADDRS,
                "is set, and NOTIFICATION_REDIS_SENTINEL_MASTER is not: set both or none",
            );
        }
        for (addrs, knob) in [
            (&self.sentinels, &NOTIFICATION_REDIS_SENTINEL_ADDRS),
            (&self.nodes, &NOTIFICATION_REDIS_CLUSTER_ADDRS),
        ] {
            if addrs.iter().any(|addr| addr.tls) && addrs.iter().any(|addr| !addr.tls) {
                note(knob, "has addresses with and without rediss://: all servers use TLS, or none");
            }
        }
        if db != 0 && !self.nodes.is_empty() {
            note(
                &NOTIFICATION_REDIS_DB,
                &format!(
                    "is {db}, and NOTIFICATION_REDIS_CLUSTER_ADDRS is set: a Cluster has database 0 only"
                ),
            );
        }
        let fits = problems.is_empty();
        for (variable, text) in problems {
            reader.problem(variable, text);
        }
        fits
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

/// The problem that no variable names a server.
const NO_SERVER: &str = "is required and not set, and neither is NOTIFICATION_REDIS_SENTINEL_ADDRS nor \
                         NOTIFICATION_REDIS_CLUSTER_ADDRS: set one of them";
