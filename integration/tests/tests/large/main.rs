//! Tests that need millions of rows or many minutes: `make test-large`, which a release needs, and `make
//! test` does not run.

use harness::{api_client, dead_letters, outbox, world};

#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/alert_rules.rs"]
mod alert_rules;
mod alerts;
mod audit;
mod commands;
mod console;
mod debian_root;
mod generated_requests;
mod generators;
mod image;
mod import;
mod manifests;
mod package;
mod replay;
mod systemd;
mod upgrade;
