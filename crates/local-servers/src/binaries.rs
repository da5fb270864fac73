//! The location of the servers' programs on this machine.

use std::path::{Path, PathBuf};

/// A required program was not found.
#[derive(Debug, thiserror::Error)]
#[error("{program} was not found in ${variable}, in PATH or where packages put it; install it ({install})")]
pub struct MissingBinary {
    program: &'static str,
    variable: &'static str,
    install: &'static str,
}

/// Finds a program of PostgreSQL, such as `pg_dump`, of the same version as the server.
pub fn postgres(program: &'static str) -> Result<PathBuf, MissingBinary> {
    let mut places = Vec::new();
    // Debian installs every version separately; the newest comes first.
    let mut versions: Vec<PathBuf> = folders_in(Path::new("/usr/lib/postgresql"));
    versions.sort_by_key(|path| {
        std::cmp::Reverse(path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()))
    });
    places.extend(versions.into_iter().map(|version| version.join("bin")));
    places.extend(
        ["/usr/pgsql/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from),
    );
    find(
        program,
        "PG_BINDIR",
        places,
        "Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql",
    )
}

/// Finds a program of Redis.
pub(crate) fn redis(program: &'static str) -> Result<PathBuf, MissingBinary> {
    let places = ["/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from).to_vec();
    find(
        program,
        "REDIS_BINDIR",
        places,
        "Debian and Ubuntu: apt-get install redis-server; macOS: brew install redis",
    )
}

/// Finds PgBouncer.
pub(crate) fn pgbouncer() -> Result<PathBuf, MissingBinary> {
    // Debian installs it in a folder that is not in the PATH of most users.
    let places =
        ["/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from).to_vec();
    find(
        "pgbouncer",
        "PGBOUNCER_BINDIR",
        places,
        "Debian and Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer",
    )
}

fn find(
    program: &'static str,
    variable: &'static str,
    places: Vec<PathBuf>,
    install: &'static str,
) -> Result<PathBuf, MissingBinary> {
    if let Some(folder) = std::env::var_os(variable) {
        let path = PathBuf::from(folder).join(program);
        return if path.is_file() { Ok(path) } else { Err(MissingBinary { program, variable, install }) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(places)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or(MissingBinary { program, variable, install })
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}
