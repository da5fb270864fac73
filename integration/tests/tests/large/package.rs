//! The Debian package in a clean Debian root: installed, run as its unit says, upgraded, removed, purged.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use harness::{Service, ServiceBuilder, service_binary};

use crate::commands::{REPOSITORY, run, status_field, target};
use crate::debian_root::Root;
use crate::world::*;

pub(crate) const ENVIRONMENT: &str = "/etc/notification/notification.env";
const FIRST: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");
const NEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "-2");
const UNIT: &str = "/usr/lib/systemd/system/notification.service";
/// The maximum exposure in `systemd-analyze security`, times ten.
const MAX_EXPOSURE: &str = "--threshold=20";

/// The package of the binary of this build. `make dist` packages another build.
pub(crate) fn first_package() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| package(FIRST))
}

/// The same package with a higher version.
pub(crate) fn next_package() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| package(NEXT))
}

fn package(version: &str) -> PathBuf {
    let folder = target().join("debian-packages");
    let mut script = Command::new(Path::new(REPOSITORY).join("scripts/package.sh"));
    run(script.arg(service_binary()).arg(&folder).arg(version));
    let made = folder.join(format!(
        "notification_{version}_{}.deb",
        run(Command::new("dpkg").arg("--print-architecture")).trim()
    ));
    assert!(made.is_file(), "{}", made.display());
    made
}

pub(crate) fn install(root: &Root, package: &Path) {
    root.copy(package, "/notification.deb");
    // Without standard input or a terminal: a question would fail.
    root.run(&["dpkg", "--install", "/notification.deb"]);
}

/// The value of a setting of an installed unit.
fn setting(root: &Root, unit: &str, name: &str) -> String {
    let text = root.read(unit);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("{unit} has no {name}")).to_owned()
}

/// Sets variables in the installed environment file, as an administrator does: by removing the # in front of
/// them. The probes are served at `internal`.
pub(crate) fn configure(root: &Root, world: &World, internal: &str) {
    let mut text = root.read(ENVIRONMENT);
    for (name, value) in [
        ("NOTIFICATION_REDIS_MASTER_ADDR", format!("127.0.0.1:{}", world.redis.port())),
        ("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn()),
        ("NOTIFICATION_USER_SERVICE_BASE_URL", world.directory.base_url()),
        ("NOTIFICATION_INTERNAL_HTTP_ADDR", internal.to_owned()),
    ] {
        let commented: Vec<String> =
            text.lines().filter(|line| line.starts_with(&format!("#{name}="))).map(str::to_owned).collect();
        assert_eq!(commented.len(), 1, "{name} in the environment file");
        text = text.replace(&format!("\n{}\n", commented[0]), &format!("\n{name}='{value}'\n"));
    }
    fs::write(root.path(ENVIRONMENT), text).expect("the file is written");
}

/// A command line in the root with the settings of the unit: its user, its group, its environment file, no
/// privileges, no write access.
fn as_unit(root: &Root) -> Vec<String> {
    const SCRIPT: &str = r#"
        user=$1 group=$2 environment=$3; shift 3
        set -a; . "$environment"; set +a
        exec setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@""#;
    let mut line = root.enter("ro");
    line.extend(["sh", "-c", SCRIPT, "unit"].map(str::to_owned));
    line.extend(["User", "Group", "EnvironmentFile"].map(|name| setting(root, UNIT, name)));
    line
}

/// Starts the command of the unit.
async fn start(root: &Root) -> Service {
    let line = as_unit(root);
    let command = setting(root, UNIT, "ExecStart");
    ServiceBuilder::default()
        .program(line.iter().map(String::as_str))
        .arguments(command.split(' '))
        .start()
        .await
}

async fn stop(mut service: Service) {
    service.signal("TERM");
    let status = service.wait_exit(BOUND).await;
    assert!(status.success(), "{status}: {:?}", service.output());
}

/// The owner, group and mode of a file, as numbers of its own root.
fn access(root: &Root, path: &str) -> (u32, u32, u32) {
    let file = fs::metadata(root.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    (file.uid(), file.gid(), file.permissions().mode() & 0o7777)
}

/// User and group of the service in the root, by number.
pub(crate) fn system_user(root: &Root) -> Option<(u32, u32)> {
    let users = root.read("/etc/passwd");
    let line = users.lines().find(|line| line.starts_with("notification:"))?;
    let fields: Vec<&str> = line.split(':').collect();
    assert_eq!(fields[6], "/usr/sbin/nologin");
    Some((fields[2].parse().expect("a number"), fields[3].parse().expect("a number")))
}

#[tokio::test]
async fn the_package_is_installed_run_upgraded_with_its_configuration_removed_and_purged() {
    let world = World::new().await;
    let root = Root::new();
    assert_eq!(system_user(&root), None, "the root is clean");

    install(&root, first_package());
    let (uid, gid) = system_user(&root).expect("the package makes a system user");
    assert!((100..1000).contains(&uid), "{uid} is no system user");
    assert_eq!(access(&root, ENVIRONMENT), (0, gid, 0o640), "it may hold secrets");
    assert!(
        !root.has("/etc/systemd/system/multi-user.target.wants/notification.service"),
        "it has no configuration yet"
    );
    check_documentation(&root);

    configure(&root, &world, "127.0.0.1:0");
    let configured = (root.read(ENVIRONMENT), access(&root, ENVIRONMENT));
    let check = ServiceBuilder::default().program(as_unit(&root).iter().map(String::as_str));
    let check = check.arguments(["/usr/bin/notification", "check-config"]).run().await;
    assert_eq!((check.code, check.stderr.as_str()), (Some(0), ""), "{}", check.stdout);

    let service = start(&root).await;
    check_process(&service, uid, gid);
    world.send(0..1).await;
    all_published(&world, 1).await;
    stop(service).await;

    install(&root, next_package());
    assert_eq!(installed_version(&root), format!("install ok installed {NEXT}"));
    assert_eq!(
        (root.read(ENVIRONMENT), access(&root, ENVIRONMENT)),
        configured,
        "an upgrade keeps the configuration"
    );
    let service = start(&root).await;
    world.send(1..2).await;
    all_published(&world, 2).await;
    stop(service).await;
    world.check(0..2).await;

    root.run(&["dpkg", "--remove", "notification"]);
    assert!(!root.has("/usr/bin/notification") && !root.has(UNIT));
    assert_eq!(
        (root.read(ENVIRONMENT), access(&root, ENVIRONMENT)),
        configured,
        "a removal keeps the configuration"
    );

    root.run(&["dpkg", "--purge", "notification"]);
    assert!(!root.has("/etc/notification"), "a purge does not");
    assert_eq!(system_user(&root), Some((uid, gid)), "files of the administrator may be the user's");
    let left = root.run(&["find", "/usr", "/etc", "/var/lib/dpkg/info", "-name", "*notification*"]);
    assert_eq!(left, "", "the package leaves nothing else");
}

pub(crate) async fn all_published(world: &World, intents: i64) {
    harness::wait_for("the routes are published", BOUND, async || {
        let published = world.number("SELECT count(*) FROM routes WHERE status = 'published'").await;
        (published == intents * 4).then_some(())
    })
    .await;
}

/// A free address on loopback, for a process whose address must be known before it starts.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.expect("a free port").to_string()
}

fn installed_version(root: &Root) -> String {
    root.run(&["dpkg-query", "--show", "--showformat=${Status} ${Version}", "notification"])
}

/// Checks that the process runs as its user, without groups and privileges.
fn check_process(service: &Service, uid: u32, gid: u32) {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).expect("it runs");
    let field = |name: &str| status_field(&status, name);
    assert_eq!(field("Uid"), format!("{uid} {uid} {uid} {uid}"));
    assert_eq!(field("Gid"), format!("{gid} {gid} {gid} {gid}"));
    assert_eq!((field("Groups"), field("NoNewPrivs")), (String::new(), "1".to_owned()));
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
}

/// Checks that there is a page for each command, completions for each shell, and the copyright.
fn check_documentation(root: &Root) {
    let help = root.run(&["/usr/bin/notification", "help"]);
    let (_, commands) = help.split_once("Commands:\n").expect("a list of commands");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let commands: BTreeSet<&str> =
        commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(commands.contains("serve"), "{help}");
    for command in commands {
        let page = format!("/usr/share/man/man1/notification-{command}.1.gz");
        assert!(root.run(&["zcat", &page]).contains(".SH SYNOPSIS"), "{page}");
    }
    for file in [
        "/usr/share/man/man1/notification.1.gz",
        "/usr/share/bash-completion/completions/notification",
        "/usr/share/zsh/vendor-completions/_notification",
        "/usr/share/fish/vendor_completions.d/notification.fish",
        "/usr/share/doc/notification/copyright",
        "/usr/share/doc/notification/docs/deployment.md",
        "/usr/share/doc/notification/docs/adr/README.md",
        "/usr/share/doc/notification/deploy/prometheus/alerts.yml",
        "/usr/share/doc/notification/deploy/grafana/notification.json",
        "/usr/share/doc/notification/examples/catalog.toml",
    ] {
        assert!(root.path(file).metadata().is_ok_and(|file| file.len() > 0), "{file}");
    }
}

#[test]
fn the_units_are_valid_and_their_exposure_is_at_most_2() {
    let root = Root::new();
    install(&root, first_package());
    for unit in ["notification.service", "notification@relay.service", "notification@state.service"] {
        root.run(&["systemd-analyze", "verify", "--man=no", unit]);
        let judged =
            root.run(&["systemd-analyze", "security", "--offline=true", "--no-pager", MAX_EXPOSURE, unit]);
        println!("{unit}: {}", judged.lines().last().unwrap_or_default());
    }
}
