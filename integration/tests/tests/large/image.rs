//! The image of the service: its root is built like the last stage of the Containerfile, and run as its user,
//! read-only.

use std::fs;
use std::path::Path;

use harness::service_binary;

use crate::commands::REPOSITORY;
use crate::debian_root::Root;
use crate::package::{all_published, free_address};
use crate::world::*;

const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The instructions of the last stage of the Containerfile.
#[derive(Default)]
struct Stage {
    base: String,
    copied: Vec<(String, String)>,
    user: String,
    entrypoint: Vec<String>,
    command: Vec<String>,
    health: Vec<String>,
    stop: String,
}

impl Stage {
    /// Reads the stage. Panics at an instruction that this test does not support.
    fn read() -> Self {
        let path = Path::new(REPOSITORY).join("deploy/Containerfile");
        let text = fs::read_to_string(path).expect("there is a Containerfile");
        let text = text.replace("\\\n", " ");
        let (_, last) = text.rsplit_once("\nFROM ").expect("stages");
        let (base, instructions) = last.split_once('\n').expect("instructions");
        let mut stage = Self { base: base.to_owned(), ..Self::default() };
        let list = |json: &str| serde_json::from_str::<Vec<String>>(json).expect("a command as a list");
        for line in instructions.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (instruction, rest) = line.split_once(' ').expect("an instruction with arguments");
            match instruction {
                "COPY" => {
                    let (from, to) = rest
                        .strip_prefix("--from=build ")
                        .and_then(|rest| rest.split_once(' '))
                        .expect("from the stage `build`");
                    stage.copied.push((from.to_owned(), to.to_owned()));
                }
                "USER" => stage.user = rest.to_owned(),
                "ENTRYPOINT" => stage.entrypoint = list(rest),
                "CMD" => stage.command = list(rest),
                "STOPSIGNAL" => stage.stop = rest.trim_start_matches("SIG").to_owned(),
                "HEALTHCHECK" => stage.health = list(rest.split_once(" CMD ").expect("a command").1),
                "EXPOSE" => assert_eq!(rest, "8092"),
                _ => panic!("this test does not know {instruction}"),
            }
        }
        stage
    }

    /// The root that an image builder would make.
    fn build(&self) -> Root {
        assert!(self.base.starts_with("debian:") && self.base.ends_with("-slim"), "{}", self.base);
        let root = Root::new();
        drop(fs::remove_file(root.path(CERTIFICATES)));
        for (from, to) in &self.copied {
            match from.as_str() {
                "/notification" => root.copy(&service_binary(), to),
                CERTIFICATES => root.copy(Path::new(CERTIFICATES), to),
                _ => panic!("this test does not know where {from} comes from"),
            }
        }
        root
    }

    /// A command line in the root: with the user by number, no privileges, and no write access.
    fn enter(&self, root: &Root) -> Vec<String> {
        let (user, group) = self.user.split_once(':').expect("a user and a group");
        assert!(user.parse::<u32>().is_ok_and(|user| user > 0), "{user}");
        let mut line = root.enter("ro");
        line.extend(["setpriv", "--reuid", user, "--regid", group, "--clear-groups"].map(str::to_owned));
        line.extend(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"].map(str::to_owned));
        line
    }
}

#[tokio::test]
async fn the_image_serves_as_its_user_with_a_read_only_root_and_stops_by_its_signal() {
    let world = World::new().await;
    let stage = Stage::read();
    let root = stage.build();
    let line = stage.enter(&root);
    let inside = || world.service().program(line.iter().map(String::as_str));
    let writing = inside().arguments(["touch", "/usr/bin/changed"]).run().await;
    assert!(writing.stderr.contains("Read-only file system"), "{writing:?}");

    let command = stage.entrypoint.iter().chain(&stage.command).map(String::as_str);
    let mut service = inside().arguments(command).start().await;
    world.send(0..10).await;
    all_published(&world, 10).await;
    service.signal(&stage.stop);
    assert!(service.wait_exit(BOUND).await.success(), "{:?}", service.output());
    world.check(0..10).await;
}

#[tokio::test]
async fn the_health_check_of_the_image_tells_whether_it_serves() {
    let world = World::new().await;
    let stage = Stage::read();
    let root = stage.build();
    let line = stage.enter(&root);
    // The health check needs an address that is known before the start.
    let free = free_address();
    let inside = || {
        let service = world.service().program(line.iter().map(String::as_str));
        service.env("NOTIFICATION_INTERNAL_HTTP_ADDR", &free)
    };
    let health = async || inside().arguments(stage.health.iter().map(String::as_str)).run().await;
    assert_eq!(health().await.code, Some(1), "nothing serves yet");
    let command = stage.entrypoint.iter().chain(&stage.command).map(String::as_str);
    let mut service = inside().arguments(command).start().await;
    let healthy = health().await;
    assert_eq!(healthy.code, Some(0), "{healthy:?}");
    service.signal(&stage.stop);
    assert!(service.wait_exit(BOUND).await.success(), "{:?}", service.output());
    assert_eq!(health().await.code, Some(1), "nothing serves any more");
}
