//! Files for containers are valid for the programs that read them, as far as these work without an image
//! builder and a cluster: the manifests by the schemas of the Kubernetes API, the Compose file by Compose,
//! the Containerfile by a linter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{REPOSITORY, run, target};

/// The versions of Kubernetes whose schemas are used: the oldest that is expected to work, and the newest
/// that the validator supports.
const KUBERNETES: [&str; 2] = ["1.30", "1.37"];

fn deploy(path: &str) -> PathBuf {
    Path::new(REPOSITORY).join("deploy").join(path)
}

/// A program that scripts/ensure-tools.sh --large installs.
fn tool(name: &str) -> Command {
    Command::new(target().join("deploy-tools/bin").join(name))
}

#[test]
fn every_manifest_follows_the_schemas_of_the_kubernetes_api() {
    for version in KUBERNETES {
        for folder in ["kubernetes/base", "kubernetes/relay"] {
            let mut manifests = 0;
            for entry in fs::read_dir(deploy(folder)).expect("a folder") {
                let path = entry.expect("an entry").path();
                // Its kind is not part of the API; a test of `make test` reads it.
                if !path.ends_with("kustomization.yaml") {
                    run(tool("kubernetes-validate")
                        .args(["--strict", "--kubernetes-version", version])
                        .arg(&path));
                    manifests += 1;
                }
            }
            assert!(manifests > 0, "{folder}");
        }
    }
}

#[test]
fn a_manifest_with_an_unknown_member_is_refused() {
    let wrong = fs::read_to_string(deploy("kubernetes/base/deployment.yaml")).expect("a manifest");
    let wrong = wrong.replace("maxSurge:", "maxSurgery:");
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary folder");
    fs::write(file.path(), wrong).expect("it is written");
    let judged = tool("kubernetes-validate")
        .args(["--strict", "--kubernetes-version", KUBERNETES[0]])
        .arg(file.path())
        .output();
    let judged = judged.expect("the validator runs");
    assert!(
        !judged.status.success() && String::from_utf8_lossy(&judged.stdout).contains("maxSurgery"),
        "{judged:?}"
    );
}

#[test]
fn compose_accepts_its_files() {
    for file in ["compose.yaml", "compose.ha.yaml"] {
        let resolved = run(Command::new("docker-compose").arg("--file").arg(deploy(file)).arg("config"));
        assert!(resolved.contains("read_only: true"), "{file}: {resolved}");
    }
}

#[test]
fn the_linter_finds_nothing_in_the_containerfile() {
    let found = run(tool("hadolint").arg(deploy("Containerfile")));
    assert_eq!(found, "");
}
