//! What describes packages and containers fits the service: variables, times, names, versions. `make test-large` installs and runs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use harness::ServiceBuilder;
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Where the manifests mount the secret.
const SECRETS: &str = "/etc/notification/secrets/";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The manifests that a kustomization lists.
fn manifests(folder: &str) -> Vec<Value> {
    let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
    let resources = kustomization["resources"].as_array().expect("resources").iter();
    resources.flat_map(|file| documents(&format!("{folder}/{}", file.as_str().expect("a file")))).collect()
}

/// The folders of manifests, and the workload of each.
fn workloads() -> Vec<(&'static str, Vec<Value>, Value)> {
    let folders = ["deploy/kubernetes/base", "deploy/kubernetes/relay"];
    let with_workload = folders.map(|folder| {
        let all = manifests(folder);
        let workload = all.iter().find(|one| one["kind"] == "Deployment").expect("a Deployment").clone();
        (folder, all, workload)
    });
    with_workload.to_vec()
}

fn containers(workload: &Value) -> impl Iterator<Item = &Value> {
    let pod = &workload["spec"]["template"]["spec"];
    ["initContainers", "containers"].into_iter().filter_map(|kind| pod[kind].as_array()).flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// A duration in whole seconds: `45s`.
fn seconds(text: &str) -> Duration {
    Duration::from_secs(text.strip_suffix('s').and_then(|text| text.parse().ok()).expect("seconds"))
}

/// What a container gets: its own variables, and those of the ConfigMap that it names.
fn variables(container: &Value, all: &[Value]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for source in container["envFrom"].as_array().into_iter().flatten() {
        let name = &source["configMapRef"]["name"];
        let map = all.iter().find(|one| one["kind"] == "ConfigMap" && one["metadata"]["name"] == *name);
        let data = map.unwrap_or_else(|| panic!("no ConfigMap {name}"))["data"].as_object().expect("data");
        found.extend(data.iter().map(|(name, value)| (name.clone(), text(value).to_owned())));
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        // What is no value is a name of the pod.
        let value = variable["value"].as_str().unwrap_or("notification-7c9d8f6b54-x2x4q");
        found.push((text(&variable["name"]).to_owned(), value.to_owned()));
    }
    found
}

/// Runs `check-config` with these variables, and their secrets in files. It must find nothing.
async fn check_config(what: &str, variables: Vec<(String, String)>) {
    let secrets = tempfile::tempdir().expect("a temporary folder");
    let mut service = ServiceBuilder::default().arguments(["check-config"]);
    for (name, value) in variables {
        let Some(file) = value.strip_prefix(SECRETS) else {
            service = service.env(&name, value);
            continue;
        };
        let content = match file {
            "postgres-dsn" | "outbox-dsn" => "postgres://n:s@db:5432/galaxy?search_path=notification\n",
            "tokens.toml" => "",
            _ => "secret\n",
        };
        fs::write(secrets.path().join(file), content).expect("the file is written");
        service = service.env(&name, secrets.path().join(file).display().to_string());
    }
    let checked = service.run().await;
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{what}: {}", checked.stdout);
}

#[tokio::test]
async fn the_variables_of_the_manifests_are_a_valid_configuration_without_a_warning() {
    let [(_, base, service), (_, relay, worker)] = workloads().try_into().expect("the service and the relay");
    for container in containers(&service).chain(containers(&worker)) {
        let all = [&base[..], &relay[..]].concat();
        let mut given = variables(container, &all);
        // `check-config` wants what `serve` does.
        let missing = variables(containers(&service).last().expect("a container"), &base);
        let known: BTreeSet<String> = given.iter().map(|(name, _)| name.clone()).collect();
        given.extend(missing.into_iter().filter(|(name, _)| !known.contains(name)));
        check_config(text(&container["name"]), given).await;
    }
}

#[tokio::test]
async fn the_variables_of_the_compose_file_are_a_valid_configuration_without_a_warning() {
    let compose = documents("deploy/compose.yaml").remove(0);
    let environment = compose["services"]["notification"]["environment"].as_object().expect("variables");
    let given = environment.iter().map(|(name, value)| {
        let value = text(value).replace("/run/secrets/tokens", &format!("{SECRETS}tokens.toml"));
        (name.clone(), value)
    });
    check_config("compose", given.collect()).await;
}

#[test]
fn every_manifest_is_listed_and_every_name_that_it_refers_to_exists() {
    for (folder, all, workload) in workloads() {
        let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
        let members: Vec<&String> = kustomization.as_object().expect("an object").keys().collect();
        assert_eq!(members, ["apiVersion", "images", "kind", "namespace", "resources"], "{folder}");
        let listed: BTreeSet<&str> =
            kustomization["resources"].as_array().expect("resources").iter().map(text).collect();
        let files = fs::read_dir(Path::new(ROOT).join(folder)).expect("a folder");
        let files: Vec<String> =
            files.map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        let files: BTreeSet<&str> =
            files.iter().map(String::as_str).filter(|file| *file != "kustomization.yaml").collect();
        assert_eq!(listed, files, "{folder}");

        let template = &workload["spec"]["template"];
        let labels = template["metadata"]["labels"].as_object().expect("labels");
        let ports: BTreeSet<&str> = containers(&workload)
            .filter_map(|container| container["ports"].as_array())
            .flatten()
            .map(|port| text(&port["name"]))
            .collect();
        for selector in all.iter().flat_map(|one| {
            let spec = &one["spec"];
            let of_service = (one["kind"] == "Service").then_some(&spec["selector"]);
            [Some(&spec["selector"]["matchLabels"]), Some(&spec["podSelector"]["matchLabels"]), of_service]
        }) {
            for (name, value) in selector.and_then(Value::as_object).into_iter().flatten() {
                assert_eq!(labels.get(name), Some(value), "{folder}: {name} selects no pod");
            }
        }
        let services = all.iter().filter(|one| one["kind"] == "Service");
        for port in services.filter_map(|service| service["spec"]["ports"].as_array()).flatten() {
            assert!(ports.contains(text(&port["targetPort"])), "{folder}: {port}");
        }
        for container in containers(&workload).filter(|container| container["ports"].is_array()) {
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                assert_eq!(container[probe]["httpGet"]["port"], "internal", "{folder}: {probe}");
            }
        }
    }
}

#[test]
fn every_container_runs_without_rights_and_with_a_read_only_root() {
    for (folder, _, workload) in workloads() {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(
            (&pod["securityContext"]["runAsNonRoot"], &pod["automountServiceAccountToken"]),
            (&Value::Bool(true), &Value::Bool(false))
        );
        assert_eq!(pod["securityContext"]["runAsUser"], 65532, "{folder}");
        for container in containers(&workload) {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true, "{folder}: {container}");
            assert_eq!(context["allowPrivilegeEscalation"], false, "{folder}: {container}");
            assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]), "{folder}: {container}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{folder}: {container}");
        }
    }
    assert!(read("deploy/Containerfile").contains("\nUSER 65532:65532\n"));
}

#[test]
fn whatever_stops_the_service_waits_longer_than_the_service_takes() {
    let config = read("docs/config.md");
    let default =
        config.split("| `NOTIFICATION_SHUTDOWN_TIMEOUT` | `").nth(1).and_then(|rest| rest.split('`').next());
    let default = seconds(default.expect("a default"));
    for unit in ["notification.service", "notification@.service"] {
        let text = read(&format!("deploy/systemd/{unit}"));
        let stop = text.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("a time");
        assert!(seconds(stop) > default, "{unit}");
    }
    let compose = documents("deploy/compose.yaml").remove(0);
    assert!(seconds(text(&compose["services"]["notification"]["stop_grace_period"])) > default);
    for (folder, all, workload) in workloads() {
        let given = containers(&workload).flat_map(|container| variables(container, &all));
        let own = given.filter(|(name, _)| name == "NOTIFICATION_SHUTDOWN_TIMEOUT").last();
        let takes = own.map_or(default, |(_, value)| seconds(&value));
        let waits = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
        assert!(Duration::from_secs(waits.expect("a time")) > takes, "{folder}");
    }
}

#[test]
fn both_units_have_the_same_sandbox() {
    let sandbox = |unit: &str| {
        let text = read(&format!("deploy/systemd/{unit}"));
        let (_, rest) = text.split_once("# sandbox: begin\n").expect("a beginning");
        rest.split_once("# sandbox: end\n").expect("an end").0.to_owned()
    };
    assert_eq!(sandbox("notification.service"), sandbox("notification@.service"));
}

/// The name of an image with its tag: no registry, and not whatever is newest.
fn check_image(image: &str) {
    let (name, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{image} has no tag"));
    assert!(tag != "latest" && tag.starts_with(|c: char| c.is_ascii_digit() || c == 'v'), "{image}");
    let first = name.split('/').next().unwrap_or_default();
    assert!(!first.contains(['.', ':']), "{image} names a registry");
}

#[test]
fn every_image_has_a_version_and_names_no_registry() {
    let text_of_file = read("deploy/Containerfile");
    let bases: Vec<&str> =
        text_of_file.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next()).collect();
    let compose = documents("deploy/compose.yaml").remove(0);
    let services = compose["services"].as_object().expect("services").values();
    let images: Vec<&str> = services.map(|service| text(&service["image"])).collect();
    assert!(bases.len() == 2 && images.len() > 4, "{bases:?} {images:?}");
    bases.into_iter().chain(images).for_each(check_image);
    // The manifests name the image, and the kustomization gives it the tag.
    for (folder, _, workload) in workloads() {
        assert!(containers(&workload).all(|container| container["image"] == "notification"), "{folder}");
        let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
        let image = &kustomization["images"][0];
        check_image(&format!("{}:{}", text(&image["name"]), text(&image["newTag"])));
    }
}

#[test]
fn versions_are_those_of_the_workspace() {
    let workspace = read("Cargo.toml");
    let value = |name: &str| {
        let line = workspace.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("no {name}"))
    };
    let (version, rust) = (value("version"), value("rust-version"));
    assert!(read("deploy/Containerfile").contains(&format!("FROM rust:{rust}-")));
    assert!(read("deploy/compose.yaml").contains(&format!("image: notification:{version}\n")));
    for (folder, ..) in workloads() {
        let kustomization = read(&format!("{folder}/kustomization.yaml"));
        assert!(kustomization.contains(&format!("newTag: {version}\n")), "{folder}");
    }
    let changes = read("CHANGELOG.md");
    let newest = changes.lines().find_map(|line| line.strip_prefix("## ")?.split(' ').next());
    assert_eq!(newest, Some(version));
    let page = read("docs/deployment.md");
    for (before, after) in [("notification_", "-1_"), ("notification:", "")] {
        let named: BTreeSet<&str> = page
            .split(before)
            .skip(1)
            .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            .map(|rest| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default())
            .collect();
        assert_eq!(named, BTreeSet::from([version]), "{before}");
        assert!(page.contains(&format!("{before}{version}{after}")));
    }
    let pinned = read("integration/tests/deploy-tools/requirements.txt");
    assert!(pinned.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains("==")));
}

#[test]
fn every_file_that_the_compose_file_mounts_is_there() {
    let compose = documents("deploy/compose.yaml").remove(0);
    let services = compose["services"].as_object().expect("services").values();
    let volumes = services.filter_map(|service| service["volumes"].as_array()).flatten().map(text);
    let secrets =
        compose["secrets"].as_object().expect("secrets").values().map(|secret| text(&secret["file"]));
    let mounted: Vec<&str> = volumes
        .filter_map(|volume| volume.split(':').next())
        .chain(secrets)
        .filter(|path| path.starts_with("./"))
        .collect();
    assert!(mounted.len() > 3, "{mounted:?}");
    for path in mounted {
        assert!(Path::new(ROOT).join("deploy").join(path).exists(), "{path}");
    }
}
