//! The examples of docs/state.md, extracted from the page and run: each prints the output on the page.

use std::fs;
use std::process::Stdio;

use harness::ServiceBuilder;
use tokio::process::Command;

use crate::state::State;

const PAGE: &str = include_str!("../../../../docs/state.md");
/// The placeholder on the page for output that differs between runs.
const ANYTHING: char = '…';

/// Each script with the output that follows it, in the order of the page; scripts without output are omitted.
fn examples() -> Vec<(&'static str, &'static str)> {
    let scripts = PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```\n"));
    let followed = scripts.filter_map(|(script, rest)| {
        let output = rest.trim_start().strip_prefix("```text\n")?;
        Some((script, output.split("\n```").next().unwrap_or_default()))
    });
    followed.collect()
}

/// True if `text` is `pattern` with any text in each place of [`ANYTHING`].
fn matches(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split(ANYTHING);
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (index, part) in parts.iter().enumerate() {
        let at = if index + 1 == parts.len() { rest.len().checked_sub(part.len()) } else { rest.find(part) };
        match at.filter(|at| rest.is_char_boundary(*at) && rest[*at..].starts_with(part)) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

#[test]
fn the_comparison_with_the_page_can_fail() {
    for (text, pattern) in
        [("abc", "abc"), ("abc", "a…"), ("abc", "…c"), ("abcbd", "a…b…d"), ("", ""), ("abc", "…")]
    {
        assert!(matches(text, pattern), "{text} {pattern}");
    }
    for (text, pattern) in [("abc", "ab"), ("abc", "b…"), ("abc", "a…b"), ("abd", "a…b…c"), ("ab", "ab…b")]
    {
        assert!(!matches(text, pattern), "{text} {pattern}");
    }
}

#[tokio::test]
async fn every_example_of_the_page_prints_what_the_page_says() {
    let state = State::new().await;
    let tokens = state.folder.path().join("tokens.toml");
    let made = ServiceBuilder::default()
        .arguments(["token", "new", "--name", "lobby", "--prefix", "users/", "--access", "write"])
        .run()
        .await;
    let (token, entry) = made.stdout.split_once('\n').expect("a token and its entry");
    fs::write(&tokens, entry).expect("is written");
    let service = state
        .process()
        .env("STATE_PROXY_HTTP_ADDR", "127.0.0.1:0")
        .env("STATE_PROXY_TOKENS_FILE", tokens.to_str().expect("UTF-8"))
        .env("STATE_PROXY_PG_INDEXES", "status,(priority)::numeric,(deadline_at)::timestamptz")
        .start()
        .await;
    let examples = examples();
    assert_eq!(examples.len(), 6, "the page has these examples");
    for (script, expected) in examples {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).env("SOCKET", state.socket()).env("TOKEN", token);
        let output = shell.env("ADDR", service.state_addr()).stdin(Stdio::null()).output().await;
        let output = output.expect("there is a shell");
        let printed = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{printed}\n{errors}");
        let (found, wanted): (Vec<&str>, Vec<&str>) = (printed.lines().collect(), expected.lines().collect());
        let is_same = found.len() == wanted.len()
            && found.iter().zip(&wanted).all(|(found, wanted)| matches(found, wanted));
        assert!(is_same, "{script}\nprinted\n{printed}\nnot\n{expected}");
    }
}
