//! Generators make complete clients of docs/openapi.json: they have every operation, they compile, and they
//! write the examples of request bodies unchanged. docs/producers.md names versions and options.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::commands::{REPOSITORY, run, target};

/// The folder in which Debian has libraries of Go.
const GO_LIBRARIES: &str = "/usr/share/gocode";
/// The library that generated Java needs besides those that the generator itself contains.
const JAKARTA_ANNOTATIONS: &str = "/usr/share/java/jakarta-annotation-api.jar";

fn page() -> PathBuf {
    Path::new(REPOSITORY).join("docs/openapi.json")
}

fn document() -> Value {
    serde_json::from_str(&fs::read_to_string(page()).expect("the document")).expect("JSON")
}

/// The operations of the document with their paths and methods.
fn operations(document: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let paths = document["paths"].as_object().expect("paths").iter();
    paths.flat_map(|(path, item)| {
        item.as_object().expect("an item").iter().map(move |(method, operation)| (path, method, operation))
    })
}

/// The example request bodies of an operation.
fn examples(operation: &Value) -> impl Iterator<Item = &Value> {
    let examples = operation.pointer("/requestBody/content/application~1json/examples");
    examples.and_then(Value::as_object).into_iter().flatten().map(|(_, example)| &example["value"])
}

/// All example request bodies of the document, with the names of their schemas.
fn bodies() -> Vec<(String, Value)> {
    let document = document();
    let of_operation = |(_, _, operation): (&String, &String, &Value)| {
        let schema = operation.pointer("/requestBody/content/application~1json/schema/$ref");
        let name = schema.and_then(Value::as_str).and_then(|pointer| pointer.rsplit('/').next());
        let name = name.unwrap_or_default().to_owned();
        examples(operation).map(move |body| (name.clone(), body.clone())).collect::<Vec<_>>()
    };
    let all: Vec<_> = operations(&document).flat_map(of_operation).collect();
    assert!(all.iter().any(|(name, _)| name == "Intent"), "{all:?}");
    all
}

/// A program that `scripts/ensure-tools.sh --large` installs from PyPI.
fn python_tool(name: &str) -> Command {
    Command::new(target().join("generators-python/bin").join(name))
}

/// The programs and libraries that the script installs from npm.
fn node_modules() -> PathBuf {
    target().join("generators-node/node_modules")
}

/// The files in a folder and its subfolders with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A client made by openapi-generator with every operation.
fn client(generator: &str, properties: &str, extension: &str) -> TempDir {
    let folder = temporary();
    let mut command = python_tool("openapi-generator-cli");
    command.args(["generate", "--generator-name", generator, "--additional-properties", properties]);
    run(command.arg("--input-spec").arg(page()).arg("--output").arg(folder.path()));
    assert_complete(folder.path(), extension);
    folder
}

/// Asserts that the code has every operation, in any naming convention.
fn assert_complete(folder: &Path, extension: &str) {
    let text = |path: &PathBuf| fs::read_to_string(path).expect("a text") + &path.display().to_string();
    let texts = files(folder, extension).iter().map(text).collect::<String>();
    let texts = texts.to_lowercase().replace('_', "");
    for (_, _, operation) in operations(&document()) {
        let id = operation["operationId"].as_str().expect("an id").to_lowercase();
        assert!(texts.contains(&id), "no operation {id}");
    }
}

/// Asserts that the lines, which a client wrote, are the bodies of the examples, without a repeated member.
fn assert_examples(lines: &str) {
    // Clients write the same time in different ways.
    let plain = |text: &str| text.replace(".000000Z", "Z").replace(".000Z", "Z").replace("+00:00", "Z");
    let (document, bodies) = (document(), bodies());
    assert_eq!(lines.lines().count(), bodies.len(), "{lines}");
    for (line, (name, body)) in lines.lines().map(plain).zip(bodies) {
        let mut written: Value = serde_json::from_str(&line).expect("JSON");
        let members = |text: &str| text.matches("\":").count();
        assert_eq!(members(&line), members(&written.to_string()), "{name} has a member twice: {line}");
        // Some clients write defaults.
        let schema = &document["components"]["schemas"][&name]["properties"];
        let is_default = |member: &str, value: &Value| schema[member].get("default") == Some(value);
        written
            .as_object_mut()
            .expect("an object")
            .retain(|member, value| body.get(member).is_some() || !is_default(member, value));
        assert_eq!(written.to_string(), plain(&body.to_string()), "{name}");
    }
}

/// The statements of a program, one for each body and made from it and the name of its schema.
fn statements(statement: impl Fn(&str, &Value) -> String) -> String {
    bodies().iter().map(|(name, body)| statement(name, body)).collect()
}

/// JSON as a literal of any of the languages.
fn literal(body: &Value) -> String {
    format!("{:?}", body.to_string())
}

#[test]
fn openapi_typescript_types_every_documented_call() {
    let folder = temporary();
    symlink(node_modules(), folder.path().join("node_modules")).expect("a link");
    let mut generate = Command::new(node_modules().join(".bin/openapi-typescript"));
    // Members with a default are not required in requests.
    generate.arg(page()).args(["--default-non-nullable=false", "--output"]);
    run(generate.arg(folder.path().join("openapi.d.ts")));
    let document = document();
    let mut program = concat!(
        "import createClient from 'openapi-fetch';\n",
        "import type { paths } from './openapi.js';\n",
        "const client = createClient<paths>({ baseUrl: 'https://notifications.example.com' });\n",
    )
    .to_owned();
    for (path, method, operation) in operations(&document) {
        let mut params = json!({});
        for parameter in operation["parameters"].as_array().expect("parameters") {
            if let Some(example) = parameter.get("example") {
                let (place, name) = (&parameter["in"], &parameter["name"]);
                params[place.as_str().expect("a place")][name.as_str().expect("a name")] = example.clone();
            }
        }
        let with_body = |body| json!({"params": params, "body": body});
        let mut calls: Vec<Value> = examples(operation).map(with_body).collect();
        if calls.is_empty() {
            calls.push(json!({"params": params}));
        }
        for call in calls {
            let method = method.to_uppercase();
            writeln!(program, "await client.{method}({path:?}, {call});").expect("memory takes it");
        }
    }
    fs::write(folder.path().join("calls.mts"), program).expect("a file");
    tsc(folder.path(), "calls.mts", &["--module", "nodenext", "--noEmit"]);
}

/// Runs the compiler of TypeScript in the folder.
fn tsc(folder: &Path, file: &str, options: &[&str]) {
    let mut command = Command::new(node_modules().join(".bin/tsc"));
    command.args(["--strict", "--target", "es2022", "--lib", "es2022,dom"]);
    run(command.args(options).arg(file).current_dir(folder));
}

#[test]
fn openapi_python_client_has_every_operation_and_sends_the_examples() {
    let folder = temporary();
    let (config, code) = (folder.path().join("config.yaml"), folder.path().join("client"));
    fs::write(&config, "post_hooks: []\n").expect("a file");
    let mut generate = python_tool("openapi-python-client");
    generate.args(["generate", "--fail-on-warning", "--meta", "none", "--path"]).arg(page());
    run(generate.arg("--config").arg(config).arg("--output-path").arg(&code));
    assert_complete(&code, "py");
    let shown = statements(|name, body| {
        // An intent is one of many classes.
        let class = if name == "Intent" { "IntentGameTurnReady" } else { name };
        let body = literal(body);
        format!("print(json.dumps(client.models.{class}.from_dict(json.loads({body})).to_dict()))\n")
    });
    let program = format!(
        "import importlib, json, pkgutil, client.models\n\
         for module in pkgutil.walk_packages(client.__path__, 'client.'): importlib.import_module(module.name)\n\
         {shown}"
    );
    let mut python = python_tool("python3");
    assert_examples(&run(python.args(["-c", &program]).current_dir(folder.path())));
}

#[test]
fn openapi_generator_makes_rust_that_sends_the_examples() {
    let client = client("rust", "packageName=client,packageVersion=0.0.0", "rs");
    // The features choose a library for TLS.
    let manifest = client.path().join("Cargo.toml");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    fs::write(&manifest, text.split("[features]").next().unwrap_or_default()).expect("a file");
    let lock = Path::new(REPOSITORY).join("integration/tests/generators/rust-client.lock");
    fs::copy(lock, client.path().join("Cargo.lock")).expect("a copy");
    let shown = statements(|name, body| {
        format!(
            "let body: client::models::{name} = serde_json::from_str({}).unwrap();\n\
             println!(\"{{}}\", serde_json::to_string(&body).unwrap());\n",
            literal(body)
        )
    });
    fs::create_dir(client.path().join("examples")).expect("a folder");
    fs::write(client.path().join("examples/bodies.rs"), format!("fn main() {{\n{shown}}}\n"))
        .expect("a file");
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--locked", "--example", "bodies"]).current_dir(client.path());
    assert_examples(&run(cargo.env("CARGO_TARGET_DIR", target().join("generators-rust"))));
}

#[test]
fn openapi_generator_makes_go_that_sends_the_examples() {
    let client = client("go", "packageName=client", "go");
    let folder = temporary();
    let source = folder.path().join("src");
    fs::create_dir_all(source.join("bodies")).expect("a folder");
    symlink(client.path(), source.join("client")).expect("a link");
    // Its types of alternatives are written, not read.
    let shown = statements(|name, body| match name {
        "Intent" => format!(
            "show(client.IntentGameTurnReadyAsIntent(read(new(client.IntentGameTurnReady), {})))\n",
            literal(body)
        ),
        "Batch" => format!(
            "show(client.NewBatch([]client.BatchIntent{{client.BatchIntentGameTurnReadyAsBatchIntent(\
             read(new(client.BatchIntentGameTurnReady), {}))}}))\n",
            literal(&body["intents"][0])
        ),
        name => format!("show(read(new(client.{name}), {}))\n", literal(body)),
    });
    let program = format!(
        "package main\n\
         import (\"client\"; \"encoding/json\"; \"fmt\")\n\
         func read[T any](body *T, text string) *T {{\n\
         if err := json.Unmarshal([]byte(text), body); err != nil {{ panic(err) }}\n\
         return body\n}}\n\
         func show(body any) {{\n\
         out, err := json.Marshal(body)\n\
         if err != nil {{ panic(err) }}\n\
         fmt.Println(string(out))\n}}\n\
         func main() {{\n{shown}}}\n"
    );
    fs::write(source.join("bodies/main.go"), program).expect("a file");
    let libraries = format!("{}:{GO_LIBRARIES}", folder.path().display());
    let mut go = Command::new("go");
    go.args(["run", "bodies"]).env("GO111MODULE", "off").env("GOPATH", libraries);
    assert_examples(&run(go.current_dir(folder.path())));
}

#[test]
fn openapi_generator_makes_java_that_sends_the_examples() {
    // Its code for query strings does not compile with an array of an enumeration.
    let properties = "library=native,openApiNullable=false,supportUrlQuery=false,useJakartaEe=true";
    let client = client("java", properties, "java");
    // Its types of alternatives are written, not read.
    let shown = statements(|name, body| match name {
        "Intent" => format!("show(new Intent(read(IntentGameTurnReady.class, {})));\n", literal(body)),
        "Batch" => format!(
            "show(new Batch().addIntentsItem(new BatchIntent(read(BatchIntentGameTurnReady.class, {}))));\n",
            literal(&body["intents"][0])
        ),
        name => format!("show(read({name}.class, {}));\n", literal(body)),
    });
    let program = format!(
        "import org.openapitools.client.JSON;\n\
         import org.openapitools.client.model.*;\n\
         class Bodies {{\n\
         static <T> T read(Class<T> type, String text) throws Exception {{\n\
         return JSON.getDefault().getMapper().readValue(text, type);\n}}\n\
         static void show(Object body) throws Exception {{\n\
         System.out.println(JSON.getDefault().getMapper().writeValueAsString(body));\n}}\n\
         public static void main(String[] arguments) throws Exception {{\n{shown}}}\n}}\n"
    );
    let source = client.path().join("src/main/java");
    fs::write(source.join("Bodies.java"), program).expect("a file");
    // The generator contains the libraries that its clients use.
    let libraries = files(&target().join("generators-python/lib"), "jar");
    let libraries = libraries.iter().map(|jar| format!("{}:", jar.display())).collect::<String>();
    let path = format!("{libraries}{JAKARTA_ANNOTATIONS}:{}", client.path().display());
    let mut javac = Command::new("javac");
    javac.args(["-nowarn", "-classpath", &path, "-d"]).arg(client.path());
    run(javac.args(files(&source, "java")));
    assert_examples(&run(Command::new("java").args(["-classpath", &path, "Bodies"])));
}

#[test]
fn openapi_generator_makes_typescript_that_sends_the_examples() {
    let client = client("typescript-fetch", "", "ts");
    tsc(client.path(), "index.ts", &["--module", "commonjs", "--outDir", "out"]);
    let shown = statements(|name, body| {
        format!("console.log(JSON.stringify(client.{name}ToJSON(client.{name}FromJSON({body}))));\n")
    });
    let program = format!("const client = require('./out/index.js');\n{shown}");
    assert_examples(&run(Command::new("node").args(["--eval", &program]).current_dir(client.path())));
}
