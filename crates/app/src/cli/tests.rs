//! Command lines that are accepted, and those that are refused.

use clap::error::ErrorKind;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

/// Checks that each command below `command`, whose command line is `line`, has an example.
fn check_examples(command: &clap::Command, line: &str) {
    for command in command.get_subcommands() {
        let line = format!("{line} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains(&line), "{line}: {help}");
        check_examples(command, &line);
    }
}

#[test]
fn every_command_has_an_example_that_names_it() {
    Cli::command().debug_assert();
    check_examples(&Cli::command(), "notification");
}

#[test]
fn what_reads_takes_the_arguments_of_its_examples() {
    for line in [
        "status --json",
        "list --producer p --type t --status dead_letter --recipient u --key k --since 2h --until 2026-04-02T09:30:00Z",
        "list --limit 200 --cursor c",
        "show 1-0 --json",
        "explain 1-0",
        "explain k --producer p --json",
        "malformed list --code c --producer p --key k --since 7d --until 1h --limit 1",
        "malformed show 1-0 --raw --field payload_json",
        "malformed resubmit --code c --producer p --since 1h --until 1m --dry-run --json",
        "malformed resubmit --id 1-0 --id 2-0 --yes --as ada --reason why",
        "explain 1-0 --stream s",
        "list --receipt bounced",
        "actions --actor a --action hold --request r --since 1d --limit 5 --json",
        "hold --producer p --reason r --dry-run --json",
        "release --channel email --yes",
        "holds list --json",
        "erase --user u-1 --dry-run --yes --json --as ada",
        "cancel --channel push --type t --producer p --recipient u --since 2h --until 1h --reason r --dry-run --json",
        "cancel --notification 1-0 --reason r --yes --as ada",
        "cancel --id 1-0/push:user:u --id 2-0/push:user:u --reason r",
        "resend --channel email --since 2h --until 1h --reason r --no-wait --json",
        "resend --notification 1-0",
        "completions zsh",
        "man --dir /tmp",
    ] {
        parse(&format!("notification {line}")).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for line in [
        "list --status gone",
        "list --since yesterday",
        "list --limit 0",
        "list --limit 201",
        "list --producer=",
        "list --type=",
        "list --recipient=",
        "list --key=",
        "list --cursor=",
        "explain k --producer=",
        "malformed list --code=",
        "malformed list --producer=",
        "malformed list --key=",
        "malformed show 1-0 --stream=",
        "show",
        "explain",
        "malformed",
        "explain k --producer p --stream s",
        "list --receipt lost",
        "malformed show",
        "malformed resubmit",
        "malformed resubmit --id 1-0 --code c",
        "malformed resubmit --reason why",
        "malformed resubmit --id 1-0 --reason=",
        "malformed show 1-0 --raw --json",
        "malformed show 1-0 --field a",
        "completions tcsh",
        "hold --reason r",
        "hold --channel email",
        "hold --channel email --reason=",
        "hold --channel email --type t --reason r",
        "release",
        "holds",
        "erase",
        "erase --user=",
        "cancel --reason r",
        "resend",
        "resend --yes --no-wait",
        "cancel --channel push",
        "cancel --id 1-0/push:user:u --channel push --reason r",
    ] {
        let wrong = parse(&format!("notification {line}")).expect_err(line);
        assert_eq!(wrong.exit_code(), 2, "{line}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2_and_help_is_none() {
    for line in ["notification", "notification fly", "notification serve now", "notification send --type x"] {
        assert_eq!(parse(line).expect_err(line).exit_code(), 2, "{line}");
    }
    for (line, kind) in [
        ("notification --version", ErrorKind::DisplayVersion),
        ("notification --help", ErrorKind::DisplayHelp),
        ("notification send --help", ErrorKind::DisplayHelp),
    ] {
        let shown = parse(line).expect_err(line);
        assert_eq!((shown.kind(), shown.exit_code()), (kind, 0), "{line}");
    }
}

#[test]
fn send_takes_flags_or_a_file_and_users_or_administrators() {
    let flags = "notification send --type t --producer p --key k --payload {}";
    for right in
        ["notification send --file x.json", &format!("{flags} --user u"), &format!("{flags} --admin")]
    {
        parse(right).unwrap_or_else(|error| panic!("{right}: {error}"));
    }
    for wrong in [flags, &format!("{flags} --user u --admin"), &format!("{flags} --user u --file x.json")] {
        parse(wrong).expect_err(wrong);
    }
}
