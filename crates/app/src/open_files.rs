//! The limit of open files of the process. Connections count as files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process to its maximum. Shells and service managers set it to 1,024 by default,
/// which is less than the connections of the API plus those to PostgreSQL, Redis and the user directory.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(
            error = %error,
            "could not raise the limit of open files; connections beyond it are refused"
        );
    }
}
