//! Files for packages and containers match the service: variables, times, names, versions. `make test-large`
//! installs and runs them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use app::config::{self, Config, ConfigErrors, Loaded, Postgres as PostgresConfig, RelayProcessConfig};
use serde_json::Value;

mod manifests;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The path at which the manifests mount the secret.
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

/// The variables of a container: its own, and those of the ConfigMap that it names.
fn variables(container: &Value, all: &[Value]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for source in container["envFrom"].as_array().into_iter().flatten() {
        let name = &source["configMapRef"]["name"];
        let map = all.iter().find(|one| one["kind"] == "ConfigMap" && one["metadata"]["name"] == *name);
        let data = map.unwrap_or_else(|| panic!("no ConfigMap {name}"))["data"].as_object().expect("data");
        found.extend(data.iter().map(|(name, value)| (name.clone(), text(value).to_owned())));
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        // An entry without a value is the name of the pod.
        let value = variable["value"].as_str().unwrap_or("notification-7c9d8f6b54-x2x4q");
        found.push((text(&variable["name"]).to_owned(), value.to_owned()));
    }
    found
}

/// The warnings of a configuration.
fn warnings<C>(loaded: Result<Loaded<C>, ConfigErrors>) -> Result<Vec<String>, ConfigErrors> {
    loaded.map(|loaded| loaded.warnings)
}

/// Reads these variables as their command does, with their secrets in files. There must be nothing to report.
fn check_config(what: &str, command: &str, variables: Vec<(String, String)>) {
    let secrets = tempfile::tempdir().expect("a temporary folder");
    let place = |(name, value): (String, String)| {
        let Some(file) = value.strip_prefix(SECRETS) else { return (name, value) };
        let content = match file {
            "postgres-dsn" | "postgres-owner-dsn" | "postgres-replica-dsns" | "outbox-dsn" => {
                "postgres://n:s@db:5432/galaxy?search_path=notification\n"
            }
            "tokens.toml" => "",
            _ => "secret\n",
        };
        fs::write(secrets.path().join(file), content).expect("the file is written");
        (name, secrets.path().join(file).display().to_string())
    };
    let variables: Vec<(String, String)> = variables.into_iter().map(place).collect();
    let found = match command {
        "serve" => warnings(config::load::<Config>(variables)),
        "migrate" => warnings(config::load::<PostgresConfig>(variables)),
        "relay" => warnings(config::load::<RelayProcessConfig>(variables)),
        _ => panic!("{what}: this test does not know what {command} reads"),
    };
    assert_eq!(found.expect(what), Vec::<String>::new(), "{what}");
}

#[test]
fn the_variables_of_the_compose_files_are_a_valid_configuration_without_a_warning() {
    for (file, service) in [
        ("deploy/compose.yaml", "notification"),
        ("deploy/compose.ha.yaml", "notification"),
        ("deploy/compose.ha.yaml", "notification-cluster"),
    ] {
        let compose = documents(file).remove(0);
        let environment = compose["services"][service]["environment"].as_object().expect("variables");
        let given = environment.iter().map(|(name, value)| {
            let value = text(value).replace("/run/secrets/tokens", &format!("{SECRETS}tokens.toml"));
            (name.clone(), value)
        });
        check_config(file, "serve", given.collect());
    }
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

/// The name of an image with its tag: without a registry, and not `latest`.
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
    // The manifests name the image, and the kustomization sets its tag.
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
    let mut releases = changes.lines().filter_map(|line| line.strip_prefix("## ")?.split(' ').next());
    let newest = releases.find(|release| *release != "Unreleased");
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

/// The default of `${NAME:-default}`; other text is unchanged.
fn without_variable(path: &str) -> &str {
    let default = path.strip_suffix('}').and_then(|path| path.split_once(":-"));
    default.map_or(path, |(_, default)| default)
}

/// Merges a patch into a document as kustomize does: a member that is null removes the other one, and the
/// elements of a list are merged by their names.
fn merge(document: &mut Value, patch: &Value) {
    match (document, patch) {
        (Value::Object(document), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    document.remove(name);
                } else {
                    merge(document.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(document), Value::Array(patch)) if patch.iter().all(|one| one["name"].is_string()) => {
            for value in patch {
                match document.iter_mut().find(|one| one["name"] == value["name"]) {
                    Some(known) => merge(known, value),
                    None => document.push(value.clone()),
                }
            }
        }
        (document, patch) => *document = patch.clone(),
    }
}

#[test]
fn each_component_is_a_valid_configuration_of_the_service_without_a_warning() {
    for component in ["console", "sentinel", "cluster", "read-replicas"] {
        let (_, mut all, _) = workloads().remove(0);
        let folder = format!("deploy/kubernetes/{component}");
        let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
        let patches = kustomization["patches"].as_array().expect("patches");
        let files = fs::read_dir(Path::new(ROOT).join(&folder)).expect("a folder").count();
        assert_eq!(files, patches.len() + 1, "{folder}: every file is listed");
        for patch in patches {
            let patch = documents(&format!("{folder}/{}", text(&patch["path"]))).remove(0);
            let is_patched = |one: &&mut Value| {
                one["kind"] == patch["kind"] && one["metadata"]["name"] == patch["metadata"]["name"]
            };
            merge(all.iter_mut().find(is_patched).expect("a manifest of the base"), &patch);
        }
        let workload = all.iter().find(|one| one["kind"] == "Deployment").expect("a Deployment");
        for container in containers(workload) {
            let command = text(&container["args"][0]);
            check_config(&format!("the service with {component}"), command, variables(container, &all));
        }
    }
}

/// True if the Debian package has this file of the source, at its place below the folder of documents.
fn is_packaged(path: &Path, assets: &[toml::Value]) -> bool {
    let is_in = |asset: &toml::Value| {
        let from = Path::new(asset[0].as_str().expect("a path"));
        let Ok(from) = from.strip_prefix("../..") else { return false };
        let to = Path::new(asset[1].as_str().expect("a folder"));
        let file = from.file_name().and_then(|name| name.to_str()).expect("a name");
        let fits = file
            .strip_prefix('*')
            .map_or(path.ends_with(file), |end| path.to_str().is_some_and(|path| path.ends_with(end)));
        fits && from.parent() == path.parent()
            && Path::new("usr/share/doc/notification").join(path.parent().expect("a folder")) == to
    };
    assets.iter().any(is_in)
}

#[test]
fn every_link_between_pages_leads_to_a_file_of_the_debian_package() {
    let manifest: toml::Value = toml::from_str(&read("crates/app/Cargo.toml")).expect("a manifest");
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().expect("assets");
    let mut pages: Vec<PathBuf> =
        ["README.md", "CHANGELOG.md", "ARCHITECTURE.md"].map(PathBuf::from).to_vec();
    for folder in ["docs", "docs/adr"] {
        let entries = fs::read_dir(Path::new(ROOT).join(folder)).expect("a folder");
        let names = entries.map(|entry| Path::new(folder).join(entry.expect("an entry").file_name()));
        pages.extend(names.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut links = 0;
    for page in &pages {
        assert!(is_packaged(page, assets), "{}", page.display());
        let text = read(page.to_str().expect("a path"));
        for rest in text.split("](").skip(1) {
            let link = rest.split([')', '#']).next().unwrap_or_default();
            if link.is_empty() || link.contains(':') || link.contains(char::is_whitespace) {
                continue;
            }
            let target = page.parent().expect("a folder").join(link);
            let mut path = PathBuf::new();
            for part in target.components() {
                if part == Component::ParentDir { assert!(path.pop()) } else { path.push(part) }
            }
            links += 1;
            assert!(is_packaged(&path, assets), "{}: {link}", page.display());
        }
    }
    assert!(links > 200, "{links}");
}

#[test]
fn every_file_that_the_compose_file_mounts_is_there() {
    let compose = documents("deploy/compose.yaml").remove(0);
    let services = compose["services"].as_object().expect("services").values();
    let volumes = services.filter_map(|service| service["volumes"].as_array()).flatten().map(text);
    let secrets = compose["secrets"].as_object().expect("secrets").values();
    let secrets = secrets.map(|secret| without_variable(text(&secret["file"])));
    let mounted: Vec<&str> = volumes
        .filter_map(|volume| volume.split(':').next())
        .chain(secrets)
        .filter(|path| path.starts_with("./"))
        .collect();
    assert!(mounted.len() > 3 && mounted.contains(&"./compose/tokens.toml"), "{mounted:?}");
    for path in mounted {
        assert!(Path::new(ROOT).join("deploy").join(path).exists(), "{path}");
    }
}
