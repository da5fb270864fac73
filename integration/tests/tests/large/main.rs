//! Tests that need millions of rows or many minutes: `make test-large`, which a release needs, and `make
//! test` does not run.

#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/alert_rules.rs"]
mod alert_rules;
mod alerts;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/api_client.rs"]
mod api_client;
mod audit;
mod commands;
mod console;
#[path = "../it/dead_letters.rs"]
mod dead_letters;
mod debian_root;
mod generators;
mod image;
mod import;
mod manifests;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/outbox.rs"]
mod outbox;
mod package;
mod replay;
mod systemd;
mod upgrade;
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/world.rs"]
mod world;
