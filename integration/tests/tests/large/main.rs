//! What needs millions of rows or many minutes: `make test-large`, which a release needs, and `make test` does not run.

#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/api_client.rs"]
mod api_client;
mod audit;
mod console;
#[path = "../it/dead_letters.rs"]
mod dead_letters;
mod import;
mod replay;
mod upgrade;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/world.rs"]
mod world;
