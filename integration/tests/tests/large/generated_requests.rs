//! Requests that schemathesis generates from docs/openapi.json, valid and invalid ones, with the token of
//! each role: none is answered with an error of the server, and each response is as the document describes.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use harness::wait_for;
use sha2::{Digest, Sha256};

use crate::api_client::{OPERATOR, PRODUCER, TOKENS, TokensFile, with_api};
use crate::commands::{REPOSITORY, run, target};
use crate::dead_letters::insert_dead_letters;
use crate::world::*;

const VIEWER: &str = "viewer-token";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance";
/// The operations for whose bodies it has no generator; it sends their examples and changes these.
const ONLY_EXAMPLES: [&str; 2] = ["/v1/intents", "/v1/intents:batch"];

/// Sends generated requests with a token. Panics with the report if a check fails.
fn send_generated(addr: &str, token: &str) {
    // It leaves notes in its working directory.
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let schemathesis = || {
        let mut command = Command::new(target().join("schemathesis/bin/schemathesis"));
        command.arg("run").arg(Path::new(REPOSITORY).join("docs/openapi.json"));
        command.args([
            "--url",
            &format!("http://{addr}"),
            "--header",
            &format!("Authorization: Bearer {token}"),
        ]);
        command.args(["--checks", CHECKS, "--seed", "1", "--continue-on-failure", "--no-shrink"]);
        command.args(["--suppress-health-check", "all", "--no-color"]).current_dir(folder.path());
        command
    };
    let paths = |option: &'static str| ONLY_EXAMPLES.into_iter().flat_map(move |path| [option, path]);
    run(schemathesis()
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "50"])
        .args(paths("--exclude-path")));
    run(schemathesis().args(["--phases", "examples,coverage"]).args(paths("--include-path")));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_to_generated_requests_of_each_role_is_as_described() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let mut text = TOKENS.to_owned();
    let hash = hex::encode(Sha256::digest(VIEWER));
    write!(text, "[[token]]\nname = \"viewer\"\nsha256 = \"{hash}\"\nrole = \"viewer\"\n")
        .expect("memory takes it");
    std::fs::write(&tokens.0, text).expect("it is there");
    let service = with_api(world.service(), &tokens).start().await;
    world.send(0..5).await;
    world.add(&[(b"colour", b"red")]).await;
    world.settled(5).await;
    wait_for("there is a malformed intent", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == 1).then_some(())
    })
    .await;
    // As an erasure leaves it.
    world.execute("UPDATE malformed_intents SET raw_fields = '[]'").await;
    insert_dead_letters(&world, 3).await;
    for token in [PRODUCER, OPERATOR, VIEWER] {
        let addr = service.api_addr();
        tokio::task::block_in_place(|| send_generated(&addr, token));
    }
}
