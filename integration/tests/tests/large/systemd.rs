//! The installed units under systemd itself: as process 1 of a Debian root of its own, in namespaces of its own. Only the network is that of
//! this machine, where the servers of the test are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use harness::{request, request_unix, wait_for};

use crate::debian_root::{Root, run};
use crate::package::{
    ENVIRONMENT, all_published, configure, first_package, free_address, install, next_package, system_user,
};
use crate::world::*;

/// A running system. Dropped, its process 1 is killed, and the kernel ends all others.
struct System {
    init: Child,
    cgroup: PathBuf,
}

impl System {
    /// Boots the root. `None`, and a line that says why, where the kernel does not offer what systemd needs.
    async fn boot(root: &Root) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("Linux");
        let unified = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let Some(unified) =
            unified.into_iter().find(|fields| fields[2] == "cgroup2").map(|fields| fields[1].to_owned())
        else {
            println!("skipped, not run under systemd: no cgroup2 file system is mounted here");
            return None;
        };
        let cgroup = Path::new(&unified).join(format!("notification-test-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&cgroup) {
            println!("skipped, not run under systemd: {}: {error}", cgroup.display());
            return None;
        }
        // What would change this machine is read-only or missing.
        const SCRIPT: &str = r#"
            echo $$ >"$1/cgroup.procs" && exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -c '
                mount --bind "$1" "$1" && cd "$1" &&
                mount -t proc proc proc && mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys &&
                mount -t sysfs -o ro sysfs sys && mount -t cgroup2 cgroup2 sys/fs/cgroup &&
                mount -t tmpfs tmpfs run && mount -t tmpfs tmpfs tmp && mount -t tmpfs -o mode=755 tmpfs dev || exit 1
                for name in null zero full random urandom tty; do
                    touch dev/$name && mount --bind /dev/$name dev/$name || exit 1
                done
                ln -s /proc/self/fd dev/fd && ln -s pts/ptmx dev/ptmx && mkdir dev/shm dev/pts &&
                mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts && pivot_root . mnt && umount --lazy mnt || exit 1
                exec env -i container=test PATH=/usr/sbin:/usr/bin chroot . /lib/systemd/systemd --unit=multi-user.target
            ' boot "$2""#;
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "boot"]).arg(&cgroup).arg(root.path("/"));
        let init = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a shell");
        let system = Self { init, cgroup };
        wait_for("systemd has booted", BOUND, async || {
            let state = system.try_systemctl(&["is-system-running"]);
            ["running", "degraded"].contains(&state.trim()).then_some(())
        })
        .await;
        Some(system)
    }

    /// Its process 1, by the number that it has outside.
    fn pid(&self) -> Option<String> {
        let parent = self.init.id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.pid().unwrap_or_default();
        command
            .args(["--target", &pid, "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd=/"]);
        command.args(line).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        command
    }

    fn run(&self, line: &[&str]) -> String {
        run(&mut self.command(line))
    }

    fn try_systemctl(&self, arguments: &[&str]) -> String {
        let line = [&["systemctl"], arguments].concat();
        let output = self.command(&line).stderr(Stdio::null()).output().expect("nsenter runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A property of a unit.
    fn property(&self, unit: &str, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "--property", name, unit]).trim().to_owned()
    }

    /// Waits until a unit is in a state.
    async fn wait_state(&self, unit: &str, state: &str) {
        wait_for("the unit is in its state", BOUND, async || {
            (self.property(unit, "ActiveState") == state).then_some(())
        })
        .await;
    }

    /// A field of the status of the main process of a unit.
    fn process(&self, unit: &str, field: &str) -> String {
        let status = self.run(&["cat", &format!("/proc/{}/status", self.property(unit, "MainPID"))]);
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{field}: {status}")).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// A file of the running system, as this process can open it.
    fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.pid().expect("it runs")))
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let journal = self.command(&["journalctl", "--no-pager", "--lines=200", "--output=cat"]).output();
            let journal = journal.map(|journal| String::from_utf8_lossy(&journal.stdout).into_owned());
            eprintln!("--- the journal ---\n{}", journal.unwrap_or_default());
        }
        drop(self.init.kill());
        drop(self.init.wait());
        // What it ended may need a moment to leave.
        const REMOVE: &str =
            r#"for n in 1 2 3 4 5 6 7 8 9 10; do rmdir $(find "$1" -depth -type d) && exit; sleep 0.5; done"#;
        drop(
            Command::new("sh")
                .args(["-c", REMOVE, "remove"])
                .arg(&self.cgroup)
                .stderr(Stdio::null())
                .status(),
        );
    }
}

/// Waits until the probe at an address says that it is ready.
async fn ready(address: &str) {
    wait_for("it is ready", BOUND, async || {
        let answer = request(address, "GET", "/readyz", &[], "").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn systemd_starts_restarts_and_stops_what_the_package_has_installed() {
    const UNIT: &str = "notification.service";
    let world = World::new().await;
    let root = Root::new();
    install(&root, first_package());
    let address = free_address();
    configure(
        &root,
        &[
            ("NOTIFICATION_REDIS_MASTER_ADDR", format!("127.0.0.1:{}", world.redis.port())),
            ("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn()),
            ("NOTIFICATION_USER_SERVICE_BASE_URL", world.directory.base_url()),
            ("NOTIFICATION_INTERNAL_HTTP_ADDR", address.clone()),
        ],
    );
    let (uid, _) = system_user(&root).expect("a system user");
    root.copy(next_package(), "/next.deb");
    let Some(system) = System::boot(&root).await else { return };
    assert_eq!(system.property(UNIT, "ActiveState"), "inactive", "an installation starts nothing");

    system.run(&["systemctl", "enable", "--now", UNIT]);
    ready(&address).await;
    assert_eq!(system.process(UNIT, "Uid"), format!("{uid} {uid} {uid} {uid}"));
    // 2: a filter of system calls.
    assert_eq!(
        (system.process(UNIT, "Seccomp"), system.process(UNIT, "NoNewPrivs")),
        ("2".to_owned(), "1".to_owned())
    );
    assert_eq!(system.process(UNIT, "CapBnd"), "0000000000000000");
    world.send(0..10).await;
    all_published(&world, 10).await;

    // An upgrade restarts it.
    let before = system.property(UNIT, "MainPID");
    system.run(&["dpkg", "--install", "/next.deb"]);
    assert_ne!(system.property(UNIT, "MainPID"), before);
    ready(&address).await;
    world.send(10..20).await;
    all_published(&world, 20).await;
    world.check(0..20).await;

    // A crash too; configuration that is wrong does not.
    let before = system.property(UNIT, "MainPID");
    system.run(&["systemctl", "kill", "--signal=KILL", UNIT]);
    wait_for("it was started again", BOUND, async || {
        (system.property(UNIT, "MainPID") != before && system.property(UNIT, "ActiveState") == "active")
            .then_some(())
    })
    .await;
    ready(&address).await;
    system.run(&["systemctl", "stop", UNIT]);
    assert_eq!(
        (system.property(UNIT, "Result"), system.property(UNIT, "ExecMainStatus")),
        ("success".to_owned(), "0".to_owned())
    );
    let right = root.read(ENVIRONMENT);
    fs::write(root.path(ENVIRONMENT), right.replace(&format!("='{address}'"), "='nowhere'"))
        .expect("it is written");
    drop(system.try_systemctl(&["start", UNIT]));
    system.wait_state(UNIT, "failed").await;
    assert_eq!(
        (system.property(UNIT, "ExecMainStatus"), system.property(UNIT, "NRestarts")),
        ("2".to_owned(), "0".to_owned())
    );

    // The template: the state store on its socket.
    let state = "notification@state.service";
    let environment = format!(
        "STATE_PROXY_PG_URL='{}'\nCONNECTOR_SOCKET=/run/notification-state/state.sock\n",
        world.database.dsn()
    );
    fs::write(root.path("/etc/notification/state.env"), environment).expect("it is written");
    system.run(&["systemctl", "start", state]);
    let socket = system.path("/run/notification-state/state.sock");
    let answer = wait_for("the state store answers", BOUND, async || {
        request_unix(&socket, "GET", "/readyz", &[], "").await.ok().filter(|answer| answer.status == 200)
    })
    .await;
    println!("the state store under systemd: {}", answer.body);

    system.run(&["dpkg", "--remove", "notification"]);
    assert_eq!(system.property(state, "ActiveState"), "inactive", "a removal stops it");
}
