//! The manifests for Kubernetes match each other and the service.

use super::*;

#[test]
fn the_variables_of_each_container_are_a_valid_configuration_of_its_command_without_a_warning() {
    let mut commands = BTreeSet::new();
    for (folder, all, workload) in workloads() {
        for container in containers(&workload) {
            let [command, ..] = &container["args"].as_array().expect("arguments")[..] else {
                panic!("{folder}: no argument: {}", container["args"])
            };
            let what = format!("{folder}: {}", text(&container["name"]));
            check_config(&what, text(command), variables(container, &all));
            commands.insert(text(command).to_owned());
        }
    }
    assert_eq!(commands, BTreeSet::from(["migrate", "relay", "serve"].map(str::to_owned)));
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
fn what_a_pod_refers_to_is_made_by_its_folder_or_by_a_command_of_the_page() {
    let page = read("docs/deployment.md");
    for (folder, all, workload) in workloads() {
        let pod = &workload["spec"]["template"]["spec"];
        let is_account = |one: &&Value| {
            one["kind"] == "ServiceAccount" && one["metadata"]["name"] == pod["serviceAccountName"]
        };
        assert_eq!(all.iter().filter(is_account).count(), 1, "{folder}: {}", pod["serviceAccountName"]);

        let selector = &workload["spec"]["selector"];
        for constraint in pod["topologySpreadConstraints"].as_array().expect("constraints") {
            assert_eq!(constraint["labelSelector"], *selector, "{folder}: {}", constraint["topologyKey"]);
        }
        let is_policy =
            |one: &&Value| one["kind"] == "NetworkPolicy" && one["spec"]["podSelector"] == *selector;
        assert_eq!(
            all.iter().filter(is_policy).count(),
            1,
            "{folder}: one policy of the network for its pods"
        );

        let volumes = pod["volumes"].as_array().expect("volumes");
        let mut mounted = BTreeSet::new();
        for container in containers(&workload) {
            assert_eq!(
                container["volumeMounts"].as_array().map(Vec::len),
                Some(1),
                "{folder}: one secret alone"
            );
            let mount = &container["volumeMounts"][0];
            assert_eq!(mount["readOnly"], Value::Bool(true));
            assert_eq!(format!("{}/", text(&mount["mountPath"])), SECRETS, "{folder}");
            let volume =
                volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("it is a volume");
            let secret = text(&volume["secret"]["secretName"]);
            let of_container = variables(container, &all).into_iter();
            let used: BTreeSet<String> = of_container
                .filter_map(|(_, value)| value.strip_prefix(SECRETS).map(str::to_owned))
                .collect();
            assert_eq!(used, keys_of_secret(&page, secret), "{folder}: {secret}");
            mounted.insert(secret);
        }
        assert_eq!(mounted.len(), volumes.len(), "{folder}: every volume is mounted");
    }
}

/// The keys of a secret in the command on the page.
fn keys_of_secret(page: &str, secret: &str) -> BTreeSet<String> {
    let (_, command) = page
        .split_once(&format!("create secret generic {secret} "))
        .unwrap_or_else(|| panic!("the page does not make the secret {secret}"));
    let mut words = Vec::new();
    for line in command.lines() {
        words.extend(line.split_whitespace());
        if !line.ends_with('\\') {
            break;
        }
    }
    let keys = words.into_iter().filter_map(|word| {
        let key = word.strip_prefix("--from-literal=").or_else(|| word.strip_prefix("--from-file="))?;
        Some(key.split_once('=').map_or(key, |(key, _)| key).to_owned())
    });
    keys.collect()
}
