//! The installed units under systemd itself: as process 1 of its own Debian root, in its own namespaces. Only
//! the network is that of this machine, on which the servers of the test run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use harness::{request, request_unix, wait_for};

use crate::commands::{run, search_path, status_field};
use crate::debian_root::Root;
use crate::package::{
    ENVIRONMENT, all_published, configure, first_package, free_address, install, next_package, system_user,
};
use crate::world::*;

/// A running system. When it is dropped, its process 1 is killed, and the kernel ends all others.
struct System {
    init: Child,
    cgroup: PathBuf,
}

/// The variable that skips the test if systemd cannot run.
const WITHOUT: &str = "TEST_LARGE_WITHOUT_SYSTEMD";

impl System {
    /// Boots the root. `None` if systemd cannot run here and [`WITHOUT`] is set.
    async fn boot(root: &Root) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("Linux");
        let unified = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let Some(unified) =
            unified.into_iter().find(|fields| fields[2] == "cgroup2").map(|fields| fields[1].to_owned())
        else {
            assert!(
                std::env::var_os(WITHOUT).is_some(),
                "no cgroup2 file system is mounted, without which systemd does not run: set {WITHOUT}=1 to leave this test out"
            );
            println!("left out, because of {WITHOUT}");
            return None;
        };
        let cgroup = Path::new(&unified).join(format!("notification-test-{}", std::process::id()));
        fs::create_dir(&cgroup).unwrap_or_else(|error| panic!("{}: {error}", cgroup.display()));
        // Paths that could change this machine are read-only or missing.
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
        command.args(["-c", SCRIPT, "boot"]).arg(&cgroup).arg(root.path("/")).env("PATH", search_path());
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

    /// Its process 1, by its process id outside.
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
        command.env("PATH", search_path());
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
        status_field(&status, field)
    }

    /// A file of the running system, at a path that this process can open.
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
        // Processes that it ended may need a moment to exit.
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

/// Waits until the probe at an address reports that it is ready.
async fn ready(address: &str) {
    wait_for("it is ready", BOUND, async || {
        let answer = request(address, "GET", "/readyz", &[], "").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
}

const UNIT: &str = "notification.service";
/// An instance of the template.
const STATE_UNIT: &str = "notification@state.service";

/// Waits until the state store under systemd responds on its socket.
async fn state_ready(system: &System) {
    let socket = system.path("/run/notification-state/state.sock");
    wait_for("the state store answers", BOUND, async || {
        request_unix(&socket, "GET", "/readyz", &[], "").await.ok().filter(|answer| answer.status == 200)
    })
    .await;
}

/// The main processes of the service and of the state store, which run.
fn main_processes(system: &System) -> [String; 2] {
    [UNIT, STATE_UNIT].map(|unit| {
        assert_eq!(system.property(unit, "ActiveState"), "active", "{unit}");
        system.property(unit, "MainPID")
    })
}

#[tokio::test]
async fn systemd_starts_restarts_and_stops_what_the_package_has_installed() {
    let world = World::new().await;
    let root = Root::new();
    install(&root, first_package());
    let address = free_address();
    configure(&root, &world, &address);
    let environment = format!(
        "STATE_PROXY_PG_URL='{}'\nCONNECTOR_SOCKET=/run/notification-state/state.sock\n",
        world.database.dsn()
    );
    fs::write(root.path("/etc/notification/state.env"), environment).expect("it is written");
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
    system.run(&["systemctl", "start", STATE_UNIT]);
    state_ready(&system).await;

    // An upgrade restarts both.
    let before = main_processes(&system);
    system.run(&["dpkg", "--install", "/next.deb"]);
    let after = main_processes(&system);
    assert!(before[0] != after[0] && before[1] != after[1], "{before:?} {after:?}");
    ready(&address).await;
    state_ready(&system).await;
    world.send(10..20).await;
    all_published(&world, 20).await;
    world.check(0..20).await;

    // A crash restarts it too; invalid configuration does not.
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
    let wrong = right.replace(&format!("='{address}'"), "='nowhere'");
    fs::write(root.path(ENVIRONMENT), wrong).expect("it is written");
    drop(system.try_systemctl(&["start", UNIT]));
    system.wait_state(UNIT, "failed").await;
    assert_eq!(
        (system.property(UNIT, "ExecMainStatus"), system.property(UNIT, "NRestarts")),
        ("2".to_owned(), "0".to_owned())
    );

    // A removal stops both: the processes that run now have ended after it.
    fs::write(root.path(ENVIRONMENT), right).expect("it is written");
    system.run(&["systemctl", "start", UNIT]);
    ready(&address).await;
    let running = main_processes(&system);
    assert!(running.iter().all(|process| system.path(&format!("/proc/{process}")).exists()), "{running:?}");
    system.run(&["dpkg", "--remove", "notification"]);
    for (unit, process) in [UNIT, STATE_UNIT].into_iter().zip(running) {
        assert_eq!(system.property(unit, "ActiveState"), "inactive", "{unit}");
        assert!(!system.path(&format!("/proc/{process}")).exists(), "{unit}");
    }
}
