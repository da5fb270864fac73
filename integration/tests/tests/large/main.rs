//! What needs millions of rows or many minutes: `make test-large`, which a release needs, and `make test` does not run.

mod audit;
mod console;
#[path = "../it/dead_letters.rs"]
mod dead_letters;
mod debian_root;
mod image;
mod import;
mod manifests;
mod package;
mod replay;
mod systemd;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/world.rs"]
mod world;
