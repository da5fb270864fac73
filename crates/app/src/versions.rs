//! The versions of PostgreSQL and Redis with which the service works (ADR 0041).
//!
//! A server that is too old ends the start, because it would fail later during operation. A server newer than
//! the tested versions is expected to work and causes a warning.

use std::fmt;

use store_redis::RedisVersion;

/// The oldest PostgreSQL that supports every setting and statement of the service: `enable_incremental_sort`.
const MIN_POSTGRES: ServerVersion = ServerVersion(13, 0);
/// The newest PostgreSQL with which the tests run: `make test-versions`.
const TESTED_POSTGRES: u32 = 18;
/// The oldest Redis that reports the deleted entries of a stream (`max-deleted-entry-id`). Without this,
/// deleted entries would be published again.
const MIN_REDIS: ServerVersion = ServerVersion(7, 0);
/// The newest Redis with which the tests run.
const TESTED_REDIS: ServerVersion = ServerVersion(8, 0);
/// The newest Valkey with which the tests run. It has the commands of Redis 7.2.
const TESTED_VALKEY: ServerVersion = ServerVersion(9, 1);

/// A major and a minor number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ServerVersion(u32, u32);

impl ServerVersion {
    /// Parses the first two numbers of a version, such as `7.0.15`.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map_while(|number| number.parse::<u32>().ok());
        Some(Self(numbers.next()?, numbers.next()?))
    }

    /// Parses a `server_version_num` of PostgreSQL.
    fn of_postgres(number: u32) -> Self {
        Self(number / 10_000, number % 10_000)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The support for a version.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Support {
    /// The tests run with this version, or it is between the oldest supported and a tested one.
    Supported,
    /// Not tested, but expected to work.
    Untested,
    /// The service needs a later version.
    TooOld,
}

/// A server that is too old.
#[derive(Debug, thiserror::Error)]
#[error("{server} is version {found}, and {needed} or later is needed")]
pub(crate) struct TooOld {
    server: &'static str,
    found: String,
    needed: ServerVersion,
}

/// Checks PostgreSQL by its `server_version_num`, such as 150018. Warns if the version is not tested.
pub(crate) fn check_postgres(number: u32) -> Result<(), TooOld> {
    require_postgres(number)?;
    let found = ServerVersion::of_postgres(number);
    if judge_postgres(found) == Support::Untested {
        warn("PostgreSQL", &found.to_string(), &TESTED_POSTGRES.to_string());
    }
    Ok(())
}

/// Checks PostgreSQL without the warning, for a check that is repeated.
pub(crate) fn require_postgres(number: u32) -> Result<(), TooOld> {
    let found = ServerVersion::of_postgres(number);
    match judge_postgres(found) {
        Support::Supported | Support::Untested => Ok(()),
        Support::TooOld => {
            Err(TooOld { server: "PostgreSQL", found: found.to_string(), needed: MIN_POSTGRES })
        }
    }
}

/// Judges PostgreSQL by its major version, because minor versions only fix bugs.
fn judge_postgres(found: ServerVersion) -> Support {
    match found {
        _ if found < MIN_POSTGRES => Support::TooOld,
        ServerVersion(major, _) if major > TESTED_POSTGRES => Support::Untested,
        _ => Support::Supported,
    }
}

/// Checks Redis by its version. A server that does not disclose its version, as managed ones may not, is
/// accepted with a warning.
pub(crate) fn check_redis(version: Option<&RedisVersion>) -> Result<(), TooOld> {
    let Some(version) = version else {
        tracing::warn!("Redis does not disclose its version, which is not checked");
        return Ok(());
    };
    let shown = match &version.other {
        Some(other) => format!("{} ({other})", version.redis),
        None => version.redis.clone(),
    };
    match judge_redis(version) {
        Support::Supported => Ok(()),
        Support::Untested => {
            warn("Redis", &shown, &format!("{TESTED_REDIS}, Valkey {TESTED_VALKEY}"));
            Ok(())
        }
        Support::TooOld => Err(TooOld { server: "Redis", found: shown, needed: MIN_REDIS }),
    }
}

/// Judges Redis by major and minor version, because a minor version brings new commands. Valkey is judged by
/// its own version. Any other server that is not Redis itself counts as not tested.
fn judge_redis(version: &RedisVersion) -> Support {
    let Some(redis) = ServerVersion::parse(&version.redis) else { return Support::Untested };
    let is_tested = match &version.other {
        None => redis <= TESTED_REDIS,
        Some(other) => {
            let valkey = other.strip_prefix("valkey ").and_then(ServerVersion::parse);
            valkey.is_some_and(|valkey| valkey <= TESTED_VALKEY)
        }
    };
    match redis {
        _ if redis < MIN_REDIS => Support::TooOld,
        _ if is_tested => Support::Supported,
        _ => Support::Untested,
    }
}

fn warn(dependency: &'static str, version: &str, tested: &str) {
    tracing::warn!(dependency, version, tested, "dependency version not tested; continuing");
}

#[cfg(test)]
mod tests {
    use store_redis::ServerMode;

    use super::*;

    #[test]
    fn a_postgresql_before_13_is_too_old_and_one_after_18_is_untested() {
        for (number, support) in [
            (90_624, Support::TooOld),
            (120_022, Support::TooOld),
            (130_000, Support::Supported),
            (150_018, Support::Supported),
            (180_006, Support::Supported),
            (190_000, Support::Untested),
        ] {
            assert_eq!(judge_postgres(ServerVersion::of_postgres(number)), support, "{number}");
        }
        let error = check_postgres(120_022).expect_err("it is too old");
        assert_eq!(error.to_string(), "PostgreSQL is version 12.22, and 13.0 or later is needed");
        check_postgres(190_000).expect("it is expected to work");
    }

    #[test]
    fn a_redis_before_7_is_too_old_and_one_after_the_tested_or_another_server_is_untested() {
        let version = |redis: &str, other: Option<&str>| RedisVersion {
            redis: redis.to_owned(),
            other: other.map(str::to_owned),
            mode: ServerMode::Standalone,
        };
        for (redis, other, support) in [
            ("6.2.14", None, Support::TooOld),
            ("6.2.6", Some("keydb 6.3.4"), Support::TooOld),
            ("7.0.0", None, Support::Supported),
            ("7.0.15", None, Support::Supported),
            ("8.0.6", None, Support::Supported),
            ("8.2.0", None, Support::Untested),
            ("7.2.4", Some("valkey 9.1.2"), Support::Supported),
            ("7.2.4", Some("valkey 10.0.0"), Support::Untested),
            ("7.2.4", Some("valkey"), Support::Untested),
            ("7.2.4", Some("dragonfly 1.0.0"), Support::Untested),
            ("unstable", None, Support::Untested),
        ] {
            assert_eq!(judge_redis(&version(redis, other)), support, "{redis} {other:?}");
        }
        let error = check_redis(Some(&version("6.2.14", None))).expect_err("it is too old");
        assert_eq!(error.to_string(), "Redis is version 6.2.14, and 7.0 or later is needed");
        check_redis(Some(&version("7.2.4", Some("valkey 10.0.1")))).expect("it is expected to work");
        check_redis(None).expect("it is accepted as it is");
    }

    #[test]
    fn the_page_has_the_newest_tested_version_of_each_server_and_all_its_tests_pass() {
        let page = include_str!("../../../docs/operations.md");
        let table = page.split_once("<!-- versions: ").expect("a table").1;
        let (table, _) = table.split_once("<!-- end of versions -->").expect("its end");
        let rows: Vec<Vec<&str>> = table
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| Debian"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert!(rows.iter().all(|row| row[3].starts_with("all ")), "{rows:?}");
        let newest = |column: usize, prefix: &str| {
            let versions = rows.iter().filter_map(|row| row[column].strip_prefix(prefix));
            versions.filter_map(ServerVersion::parse).max()
        };
        assert_eq!(newest(1, "").map(|version| version.0), Some(TESTED_POSTGRES));
        assert_eq!(newest(2, "Redis "), Some(TESTED_REDIS));
        assert_eq!(newest(2, "Valkey "), Some(TESTED_VALKEY));
    }
}
