//! The variables that name the servers of Redis.

use store_redis::Topology;

use super::*;

/// The variables that name servers of Redis, and the passwords.
fn redis(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let changes =
        changes.iter().map(|(name, value)| (format!("NOTIFICATION_REDIS_{name}"), (*value).to_owned()));
    vars(&[("NOTIFICATION_REDIS_MASTER_ADDR", "")])
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .chain(changes)
        .collect()
}

#[test]
fn sentinels_or_a_cluster_name_the_servers_instead_of_one_address() {
    let topology = |changes: &[(&str, &str)]| {
        load::<Config>(redis(changes)).unwrap_or_else(|errors| panic!("{errors}")).config.redis.topology
    };
    let sentinels = topology(&[
        ("SENTINEL_ADDRS", "rediss://a:26379, rediss://b:26379"),
        ("SENTINEL_MASTER", "galaxy"),
        ("SENTINEL_PASSWORD", "s3cret"),
        ("DB", "3"),
    ]);
    assert_eq!(
        sentinels.to_string(),
        "the primary galaxy of the Sentinels rediss://a:26379, rediss://b:26379"
    );
    assert!(!format!("{sentinels:?}").contains("s3cret"));
    let Topology::Sentinel { password: Some(password), .. } = sentinels else { panic!("{sentinels:?}") };
    assert_eq!(password.0, "s3cret");
    let addrs = vec!["a:7000".to_owned(), "b:7000".to_owned()];
    assert_eq!(topology(&[("CLUSTER_ADDRS", "a:7000,b:7000")]), Topology::Cluster { addrs });
}

#[test]
fn variables_of_redis_that_do_not_fit_together_are_all_named() {
    let (sentinels, master) = (("SENTINEL_ADDRS", "a:26379"), ("SENTINEL_MASTER", "galaxy"));
    let (single, nodes) = (("MASTER_ADDR", "a:6379"), ("CLUSTER_ADDRS", "a:7000"));
    let mixed = "has addresses with and without rediss://: all servers use TLS, or none";
    for (changes, expected) in [
        (&[][..], &["MASTER_ADDR is required and not set, and neither is"][..]),
        (
            &[single, sentinels, nodes, ("DB", "2")],
            &[
                "MASTER_ADDR is set, and so is NOTIFICATION_REDIS_SENTINEL_ADDRS and NOTIFICATION_REDIS_CLUSTER_ADDRS",
                "SENTINEL_ADDRS is set, and NOTIFICATION_REDIS_SENTINEL_MASTER is not",
                "DB is 2, and NOTIFICATION_REDIS_CLUSTER_ADDRS is set",
            ],
        ),
        (&[sentinels, master, nodes], &["SENTINEL_ADDRS is set, and so is NOTIFICATION_REDIS_CLUSTER_ADDRS"]),
        (&[master], &["SENTINEL_MASTER is set, and NOTIFICATION_REDIS_SENTINEL_ADDRS is not"]),
        (&[single, master], &["SENTINEL_MASTER is set, and NOTIFICATION_REDIS_SENTINEL_ADDRS is not"]),
        (
            &[single, ("SENTINEL_PASSWORD", "s3cret")],
            &["SENTINEL_PASSWORD is set, and NOTIFICATION_REDIS_SENTINEL_ADDRS is not"],
        ),
        (&[("SENTINEL_ADDRS", "a:1,rediss://b:1"), master], &[&format!("SENTINEL_ADDRS {mixed}")]),
        (&[("CLUSTER_ADDRS", "a:1,rediss://b:1")], &[&format!("CLUSTER_ADDRS {mixed}")]),
        (&[("CLUSTER_ADDRS", "a:0")], &["CLUSTER_ADDRS is \"a:0\": number 1 cannot be used: port 0"]),
    ] {
        let report = load::<Config>(redis(changes)).expect_err("something is wrong").to_string();
        let lines: Vec<&str> = report.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{report}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(&format!("error: NOTIFICATION_REDIS_{expected}")), "{report}");
        }
        assert!(!report.contains("s3cret"));
    }
}
