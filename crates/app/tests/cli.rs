//! Tests of the binary, run as a shell runs it.

use std::process::{Command, Output};

const MINIMUM: [(&str, &str); 3] = [
    ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
    ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@db/galaxy"),
    ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users:8080"),
];

/// Runs the binary with these variables and no others.
fn run(arguments: &[&str], vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_notification"));
    command.args(arguments).env_clear().envs(vars.iter().copied()).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn check_config_prints_every_setting_and_masks_secrets() {
    let password = ("NOTIFICATION_REDIS_PASSWORD", "s3cret");
    let odd = ("NOTIFICATION_ROUTE_LEASE_TLL", "5s");
    let output = run(&["check-config"], &[&MINIMUM[..], &[password, odd]].concat());

    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(lines.contains(&"NOTIFICATION_REDIS_PASSWORD=****  # no default"), "{lines:?}");
    assert!(
        lines.contains(&"NOTIFICATION_POSTGRES_PRIMARY_DSN=postgres://me:****@db:5432/galaxy  # no default"),
        "{lines:?}"
    );
    assert!(lines.contains(&"NOTIFICATION_RECORD_RETENTION=720h"), "{lines:?}");
    assert!(
        lines.iter().all(|line| line.contains('=')) && !text(&output.stdout).contains("s3cret"),
        "{lines:?}"
    );
    assert_eq!(
        text(&output.stderr),
        "warning: NOTIFICATION_ROUTE_LEASE_TLL is not a variable of this service and has no effect; \
         did you mean NOTIFICATION_ROUTE_LEASE_TTL?\n"
    );
}

#[test]
fn check_config_marks_the_values_that_differ_from_their_default() {
    let lease = ("NOTIFICATION_ROUTE_LEASE_TTL", "11s");
    let same = ("NOTIFICATION_RECORD_RETENTION", "43200m");
    let admins = ("NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED", "ada@example.com");
    let output = run(&["check-config"], &[&MINIMUM[..], &[lease, same, admins]].concat());
    let mut marked: Vec<&str> = text(&output.stdout).lines().filter(|line| line.contains("  # ")).collect();
    marked.sort_unstable();
    let expected = [
        "NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED=ada@example.com  # no default",
        "NOTIFICATION_POSTGRES_PRIMARY_DSN=postgres://me:****@db:5432/galaxy  # no default",
        "NOTIFICATION_REDIS_MASTER_ADDR=redis:6379  # no default",
        "NOTIFICATION_ROUTE_LEASE_TTL=11s  # default: 5s",
        "NOTIFICATION_USER_SERVICE_BASE_URL=http://users:8080/  # no default",
    ];
    assert_eq!(marked, expected);
}

#[test]
fn a_wrong_configuration_is_exit_code_2_for_every_command_that_reads_one() {
    let payload = r#"{"game_id":"g","game_name":"n","turn_number":1}"#;
    let send = "send --type game.turn.ready --producer game_master --user u --key k --payload";
    let send: Vec<&str> = send.split(' ').chain([payload]).collect();
    for arguments in [&["check-config"][..], &send] {
        let output = run(arguments, &[("NOTIFICATION_REDIS_ADDR", "redis:6379")]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(text(&output.stdout), "");
        let errors = text(&output.stderr);
        assert!(errors.contains("error: NOTIFICATION_REDIS_MASTER_ADDR is required and not set"), "{errors}");
        assert!(errors.contains("error: NOTIFICATION_REDIS_ADDR is retired"), "{errors}");
    }
}

#[test]
#[cfg(unix)]
fn a_value_that_is_not_utf_8_is_refused_and_not_a_panic() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let mut command = Command::new(env!("CARGO_BIN_EXE_notification"));
    command
        .arg("check-config")
        .env_clear()
        .envs(MINIMUM)
        .env("NOTIFICATION_REDIS_PASSWORD", OsStr::from_bytes(b"p\xff"));
    let output = command.output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("NOTIFICATION_REDIS_PASSWORD is"), "{output:?}");
    assert!(text(&output.stderr).contains("it is not UTF-8"), "{output:?}");
}

#[test]
fn a_malformed_intent_is_exit_code_2_with_its_failure_code() {
    let arguments = "send --type game.over --producer game_master --admin --key k --payload {}";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let output = run(&arguments, &[("NOTIFICATION_REDIS_MASTER_ADDR", "127.0.0.1:1")]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).starts_with("failure unknown_notification_type: "), "{output:?}");
}

#[test]
fn a_redis_that_refuses_is_exit_code_1() {
    let payload = r#"{"game_id":"g","game_name":"n","turn_number":1}"#;
    let arguments = "send --type game.turn.ready --producer game_master --user u --key k --payload";
    let arguments: Vec<&str> = arguments.split(' ').chain([payload]).collect();
    let output = run(&arguments, &[("NOTIFICATION_REDIS_MASTER_ADDR", "127.0.0.1:1")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(
        error.starts_with("error: could not append to notification:intents on Redis at 127.0.0.1:1: "),
        "{error}"
    );
    assert_eq!(error.matches("refused").count(), 1, "{error}");
}

#[test]
fn usage_errors_are_exit_code_2_and_help_goes_to_standard_output() {
    assert_eq!(run(&["fly"], &[]).status.code(), Some(2));
    assert_eq!(run(&[], &[]).status.code(), Some(2));
    let help = run(&["send", "--help"], &[]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("notification send --type game.turn.ready"), "{help:?}");
    assert!(text(&run(&["--version"], &[]).stdout).starts_with("notification "));
}

#[test]
fn a_new_token_is_another_one_each_time_and_only_its_hash_is_in_the_entry() {
    let make = || {
        let output = run(&["token", "new", "--name", "on-call", "--operator"], &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output.stdout).to_owned()
    };
    let (first, second) = (make(), make());
    let (token, entry) = first.split_once("\n\n").expect("a token, an empty line, an entry");
    assert!(
        entry.starts_with("[[token]]\nname = \"on-call\"\nsha256 = \"") && !entry.contains(token),
        "{first}"
    );
    assert!(!second.contains(token), "{second}");
}

#[test]
fn completions_are_understood_by_their_shell_and_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell], &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let script = text(&output.stdout);
        for command in ["status", "explain", "malformed", "dead_letter"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let script = run(&["completions", "bash"], &[]).stdout;
    let mut check = Command::new("bash");
    check.args(["-c", "set -eu; eval \"$1\"; complete -p notification", "bash", text(&script)]);
    let checked = check.output().expect("bash runs");
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert!(text(&checked.stdout).starts_with("complete "), "{checked:?}");
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let page = run(&["man"], &[]);
    assert_eq!(page.status.code(), Some(0), "{page:?}");
    assert!(text(&page.stdout).contains(".TH notification 1"), "{page:?}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("UTF-8");
    assert_eq!(run(&["man", "--dir", path], &[]).status.code(), Some(0));
    for name in ["notification", "notification-status", "notification-malformed-show"] {
        let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).expect(name);
        assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    assert_eq!(run(&["man", "--dir", "/nowhere/at/all"], &[]).status.code(), Some(1));
}

#[test]
fn a_command_that_asks_the_stream_needs_redis_and_one_that_does_not_needs_the_tables_alone() {
    let tables = [("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@127.0.0.1:1/galaxy")];
    for arguments in [&["status"][..], &["explain", "1-0"]] {
        let output = run(arguments, &tables);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = text(&output.stderr);
        assert!(error.contains("NOTIFICATION_REDIS_MASTER_ADDR is required and not set"), "{error}");
    }
    for arguments in [&["list"][..], &["show", "1-0"], &["malformed", "list"]] {
        let output = run(arguments, &tables);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = text(&output.stderr);
        assert!(
            error.starts_with("error: the tables at postgres://me:****@127.0.0.1:1/galaxy cannot be used: "),
            "{error}"
        );
    }
}
