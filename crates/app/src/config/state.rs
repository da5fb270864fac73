//! The state store as a process of its own: `notification state`. Its variables have the names that the
//! program it replaces uses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http_server::tokens::AccessTokens;
use pg::Dsn;
use state::{IndexSpec, TableName};

use super::http_addr::HttpAddr;
use super::knob::Takes;
use super::knobs::*;
use super::reader::{Reader, Section};
use super::section::section;
use super::telemetry::TelemetryConfig;
use super::value::Value;

/// The file mode with every permission and no special bit.
const PERMISSION_BITS: u32 = 0o777;

/// The configuration of `state`.
#[derive(Debug, Clone)]
pub struct StateConfig {
    /// The database, the table and the limits.
    pub store: StateStore,
    /// The Unix socket, if there is one.
    pub socket: Option<StateSocket>,
    /// The TCP listener, if there is one.
    pub http: Option<StateHttp>,
    /// The address that Prometheus scrapes, if there is one.
    pub metrics: Option<HttpAddr>,
    /// Logs, traces and metrics of the process.
    pub telemetry: TelemetryConfig,
}

section! {
    /// The database, the table and the limits.
    #[derive(Debug, Clone)]
    pub struct StateStore {
        /// The connection string of the database.
        pub dsn: Dsn = STATE_PROXY_PG_URL,
        /// The table of the documents.
        pub table: TableName = STATE_PROXY_TABLE,
        /// The indexes that operators request.
        pub indexes: Vec<IndexSpec> = STATE_PROXY_PG_INDEXES => |indexes: Indexes| indexes.specs,
        /// The maximum size of a request body, in bytes.
        pub max_body_bytes: usize = STATE_PROXY_MAX_BODY_BYTES,
        /// The timeout of a statement.
        pub statement_timeout: Duration = STATE_PROXY_STATEMENT_TIMEOUT,
    }
}

/// A Unix socket.
#[derive(Debug, Clone)]
pub struct StateSocket {
    /// The path of the socket file.
    pub path: PathBuf,
    /// The permissions of the file.
    pub mode: u32,
}

/// A TCP listener.
#[derive(Debug, Clone)]
pub struct StateHttp {
    /// The address of the listener.
    pub addr: HttpAddr,
    /// The file with the clients' tokens. Without it, no token is required.
    pub tokens_file: Option<PathBuf>,
}

impl StateConfig {
    /// Returns true if a variable of the state store is set.
    pub fn is_meant(vars: &[(String, String)]) -> bool {
        let names = KNOBS.iter().filter(|knob| knob.section == STATE);
        let mut names = names.flat_map(|knob| [Some(knob.name.to_owned()), knob.file_variable()]).flatten();
        names.any(|known| vars.iter().any(|(name, value)| *name == known && !value.is_empty()))
    }
}

impl Section for StateConfig {
    fn read(reader: &mut Reader) -> Option<Self> {
        let store = StateStore::read(reader);
        let path = reader.get::<Option<PathBuf>>(&CONNECTOR_SOCKET);
        let mode = reader.get::<FileMode>(&STATE_PROXY_SOCKET_MODE);
        let addr = reader.get::<Option<HttpAddr>>(&STATE_PROXY_HTTP_ADDR);
        let metrics = reader.get::<Option<HttpAddr>>(&STATE_PROXY_METRICS_ADDR);
        let tokens = reader.get(&STATE_PROXY_TOKENS_FILE);
        let telemetry = TelemetryConfig::read(reader);
        if let (Some(None), Some(None)) = (&path, &addr) {
            let other = STATE_PROXY_HTTP_ADDR.name;
            let text = format!("is not set, and neither is {other}: set one of them, or both");
            reader.problem(CONNECTOR_SOCKET.name, text);
        }
        let http = check_tokens(reader, addr, tokens);
        let (path, mode, metrics, mut telemetry) = (path?, mode?, metrics?, telemetry?);
        telemetry.prometheus &= metrics.is_some();
        let socket = path.map(|path| StateSocket { path, mode: mode.0 });
        Some(Self { store: store?, socket, http: http?, metrics, telemetry })
    }
}

/// Only the name of the table, for a command that prints statements.
impl Section for TableName {
    fn read(reader: &mut Reader) -> Option<Self> {
        reader.get(&STATE_PROXY_TABLE)
    }
}

/// The permissions of a file.
struct FileMode(u32);

impl Value for FileMode {
    fn parse(text: &str, _: &Takes) -> Result<Self, String> {
        let is_octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let mode =
            is_octal.then(|| u32::from_str_radix(text, 8).ok()).flatten().ok_or("not an octal number")?;
        if mode <= PERMISSION_BITS { Ok(Self(mode)) } else { Err("it has more than permissions".to_owned()) }
    }

    fn show(&self) -> String {
        format!("{:04o}", self.0)
    }
}

/// A list of indexes, and its text as configured.
struct Indexes {
    specs: Vec<IndexSpec>,
    text: String,
}

impl Value for Indexes {
    fn parse(text: &str, _: &Takes) -> Result<Self, String> {
        let specs = IndexSpec::parse_list(text).map_err(|errors| errors.to_string())?;
        Ok(Self { specs, text: text.to_owned() })
    }

    fn show(&self) -> String {
        self.text.clone()
    }
}

/// Rejects a TCP listener without tokens unless it is on loopback, and a tokens file that is invalid.
fn check_tokens(
    reader: &mut Reader,
    addr: Option<Option<HttpAddr>>,
    tokens: Option<Option<PathBuf>>,
) -> Option<Option<StateHttp>> {
    let variable = STATE_PROXY_TOKENS_FILE.name;
    let tokens_file = tokens?;
    let mut is_right = true;
    if let Some(Err(error)) = tokens_file.as_deref().map(AccessTokens::load) {
        reader.problem(variable, format!("cannot be used: {}", ambient::error_chain(&error)));
        is_right = false;
    }
    let addr = addr?;
    match (&addr, &tokens_file) {
        (None, Some(_)) => {
            let text = format!(
                "{variable} has no effect without {}: a socket requires no tokens",
                STATE_PROXY_HTTP_ADDR.name
            );
            reader.warn(text);
        }
        (Some(addr), None) if !is_loopback(addr) => {
            let text = format!(
                "is required and not set, because {} is {addr}, which is not loopback",
                STATE_PROXY_HTTP_ADDR.name
            );
            reader.problem(variable, text);
            is_right = false;
        }
        _ => {}
    }
    is_right.then(|| addr.map(|addr| StateHttp { addr, tokens_file }))
}

/// Returns true if only this machine can connect. A host name other than `localhost` could resolve to any
/// address.
fn is_loopback(addr: &HttpAddr) -> bool {
    let Some(host) = &addr.host else { return false };
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::*;
    use crate::config::{ConfigErrors, Loaded};

    const URL: (&str, &str) = ("STATE_PROXY_PG_URL", "postgres://me:s3cret@db/galaxy");
    const SOCKET: (&str, &str) = ("CONNECTOR_SOCKET", "/run/state.sock");

    fn load(vars: &[(&str, &str)]) -> Result<Loaded<StateConfig>, ConfigErrors> {
        crate::config::load(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn errors(vars: &[(&str, &str)]) -> String {
        load(vars).map(|_| ()).expect_err("something is wrong").to_string()
    }

    fn tokens_file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("is written");
        file
    }

    #[test]
    fn a_url_and_a_socket_are_enough() {
        let Loaded { config, warnings, .. } = load(&[URL, SOCKET]).expect("is right");
        assert_eq!(warnings, Vec::<String>::new());
        let socket = config.socket.expect("was given");
        assert_eq!((socket.path.as_path(), socket.mode), (Path::new("/run/state.sock"), 0o660));
        assert!(config.http.is_none() && config.store.indexes.is_empty());
        assert_eq!(config.store.table.as_str(), "kv");
        assert_eq!(config.store.max_body_bytes, 10 * 1024 * 1024);
        assert_eq!(config.store.statement_timeout, Duration::from_secs(5));
    }

    #[test]
    fn every_variable_of_the_section_is_read_and_shown_without_the_password() {
        let Loaded { effective, .. } = load(&[URL, SOCKET]).expect("is right");
        let names: Vec<&str> = effective.iter().map(|(name, _)| name.as_str()).collect();
        for knob in KNOBS.iter().filter(|knob| knob.section == STATE) {
            assert!(names.contains(&knob.name), "{}", knob.name);
        }
        assert!(effective.iter().all(|(_, value)| !value.contains("s3cret")), "{effective:?}");
    }

    #[test]
    fn everything_that_is_wrong_is_reported_at_once() {
        let found = errors(&[
            ("CONNECTOR_SOCKET", &format!("/{}", "x".repeat(107))),
            ("STATE_PROXY_HTTP_ADDR", "8080"),
            ("STATE_PROXY_PG_INDEXES", "status,status;drop"),
            ("STATE_PROXY_SOCKET_MODE", "0990"),
            ("STATE_PROXY_TOKENS_FILE", "/nowhere/tokens.toml"),
            ("STATE_PROXY_MAX_BODY_BYTES", "1MB"),
            ("STATE_PROXY_STATEMENT_TIMEOUT", "5"),
            ("STATE_PROXY_TABLE", "kv;"),
            ("STATE_PROXY_TABEL", "kv"),
        ]);
        for part in [
            "STATE_PROXY_PG_URL is required",
            "107 bytes",
            "STATE_PROXY_HTTP_ADDR is \"8080\"",
            "status;drop",
            "STATE_PROXY_SOCKET_MODE is \"0990\"",
            "STATE_PROXY_TOKENS_FILE",
            "STATE_PROXY_MAX_BODY_BYTES is \"1MB\"",
            "STATE_PROXY_STATEMENT_TIMEOUT is \"5\"",
            "STATE_PROXY_TABLE is \"kv;\"",
            "did you mean STATE_PROXY_TABLE?",
        ] {
            assert!(found.contains(part), "{part} is not in:\n{found}");
        }
    }

    #[test]
    fn one_listener_at_least_must_be_named() {
        assert!(errors(&[URL]).contains("CONNECTOR_SOCKET is not set, and neither is STATE_PROXY_HTTP_ADDR"));
        load(&[URL, ("STATE_PROXY_HTTP_ADDR", "127.0.0.1:0")]).expect("TCP alone");
    }

    #[test]
    fn tokens_are_required_beyond_loopback_and_only_there() {
        for addr in ["127.0.0.1:80", "127.1.2.3:80", "localhost:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            let loaded = load(&[URL, ("STATE_PROXY_HTTP_ADDR", addr)]).expect(addr);
            assert!(loaded.config.http.expect(addr).tokens_file.is_none());
        }
        let file = tokens_file("");
        let file = file.path().to_str().expect("UTF-8");
        for addr in
            [":80", "0.0.0.0:80", "[::]:80", "10.0.0.1:80", "state.example:80", "localhost.example:80"]
        {
            let found = errors(&[URL, ("STATE_PROXY_HTTP_ADDR", addr)]);
            assert!(found.contains("STATE_PROXY_TOKENS_FILE is required"), "{addr}: {found}");
            load(&[URL, ("STATE_PROXY_HTTP_ADDR", addr), ("STATE_PROXY_TOKENS_FILE", file)]).expect(addr);
        }
        let loaded = load(&[URL, SOCKET, ("STATE_PROXY_TOKENS_FILE", file)]).expect("is right");
        assert!(loaded.warnings[0].contains("no effect"), "{:?}", loaded.warnings);
    }

    #[test]
    fn a_tokens_file_that_is_wrong_is_named_with_its_entry() {
        let wrong = tokens_file("[[token]]\nname = \"a\"\naccess = \"write\"\n");
        let file = wrong.path().to_str().expect("UTF-8");
        let addr = ("STATE_PROXY_HTTP_ADDR", "127.0.0.1:80");
        let found = errors(&[URL, addr, ("STATE_PROXY_TOKENS_FILE", file)]);
        assert!(found.contains("access without prefixes"), "{found}");
    }

    #[test]
    fn check_config_checks_both_the_service_and_the_state_store_if_one_of_its_variables_is_set() {
        let check = |vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let mut out = Vec::new();
            let outcome = crate::commands::check_config::run(vars, &mut out);
            outcome.map(|()| String::from_utf8(out).expect("UTF-8")).map_err(|failure| failure.to_string())
        };
        let service = [
            ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
            ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@db/galaxy"),
            ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users:8080"),
        ];
        let shown = check(&service).expect("is right");
        assert!(!shown.contains("STATE_PROXY"), "{shown}");
        let shown = check(&[&service[..], &[URL, SOCKET]].concat()).expect("is right");
        assert!(
            shown.contains("\nCONNECTOR_SOCKET=/run/state.sock  # no default\n") && !shown.contains("s3cret"),
            "{shown}"
        );
        assert_eq!(shown.matches("NOTIFICATION_LOG_LEVEL=").count(), 1, "{shown}");
        let wrong = check(&[&service[1..], &[SOCKET]].concat()).expect_err("two are missing");
        for name in ["NOTIFICATION_REDIS_MASTER_ADDR is required", "STATE_PROXY_PG_URL is required"] {
            assert!(wrong.contains(name), "{wrong}");
        }
    }

    #[test]
    fn a_mode_is_three_or_four_octal_digits() {
        let takes = &STATE_PROXY_SOCKET_MODE.takes;
        for (text, mode) in [("0660", 0o660), ("600", 0o600), ("0777", 0o777), ("000", 0)] {
            assert_eq!(FileMode::parse(text, takes).map(|mode| mode.0), Ok(mode));
        }
        for wrong in ["", "66", "00660", "0o660", "u=rw", "0888", "4755", "-660", "+660"] {
            assert!(FileMode::parse(wrong, takes).is_err(), "{wrong}");
        }
    }
}
