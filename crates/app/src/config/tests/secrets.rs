//! Passwords: the places from which they are read, and their absence from all messages.

use super::*;

#[test]
fn no_secret_appears_in_any_message_or_in_what_is_shown() {
    let wrong = errors(&[
        ("NOTIFICATION_REDIS_MASTER_ADDR", "rediss://default:s3cret@redis:6379"),
        ("NOTIFICATION_REDIS_PASSWORD", "s3cret\n"),
        ("NOTIFICATION_REDIS_REPLICA_ADDRS", "default:s3cret@redis"),
        ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@db:port/x"),
        ("NOTIFICATION_POSTGRES_REPLICA_DSNS", "postgres://me:s3cret@db/x?sslmode=often"),
        ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://me:s3cret@users"),
        ("NOTIFICATION_POSTGRES_PRIMARY_DSM", "postgres://me:s3cret@db/x"),
    ]);
    assert!(!wrong.contains("s3cret"), "{wrong}");
    assert_eq!(wrong.lines().count(), 7, "{wrong}");
    assert!(wrong.contains("ends with a line break"), "{wrong}");

    let right = loaded(&[("NOTIFICATION_REDIS_PASSWORD", "s3cret")]);
    assert!(!format!("{right:?}").contains("s3cret"), "{right:?}");
    assert_eq!(right.config.redis.password.expose(), Some("s3cret"));
    assert_eq!(effective(&right, "NOTIFICATION_REDIS_PASSWORD"), "****");
    assert_eq!(effective(&right, "NOTIFICATION_POSTGRES_PRIMARY_DSN"), "postgres://me:****@db:5432/galaxy");
}

#[test]
fn a_secret_may_be_in_a_file_of_which_one_line_break_is_dropped() {
    let file = |content: &str| {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(content.as_bytes()).expect("it can be written");
        file
    };
    let password = file("s3cret\n");
    let dsn = file("postgres://me:s3cret@elsewhere/x");
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("a path in UTF-8").to_owned();
    let (password, dsn) = (path(&password), path(&dsn));
    let files = [
        ("NOTIFICATION_REDIS_PASSWORD_FILE", password.as_str()),
        ("NOTIFICATION_POSTGRES_PRIMARY_DSN", ""),
        ("NOTIFICATION_POSTGRES_PRIMARY_DSN_FILE", dsn.as_str()),
        ("NOTIFICATION_POSTGRES_REPLICA_DSNS_FILE", ""),
    ];
    let right = loaded(&files);
    assert_eq!(right.warnings, Vec::<String>::new());
    assert_eq!(right.config.redis.password.expose(), Some("s3cret"));
    assert_eq!(effective(&right, "NOTIFICATION_POSTGRES_PRIMARY_DSN"), "postgres://me:****@elsewhere:5432/x");
    assert!(!format!("{right:?}").contains("s3cret"), "{right:?}");

    let both = errors(&[("NOTIFICATION_REDIS_PASSWORD", "s3cret"), files[0]]);
    assert!(
        both.contains("NOTIFICATION_REDIS_PASSWORD is set, and so is NOTIFICATION_REDIS_PASSWORD_FILE"),
        "{both}"
    );
    assert!(!both.contains("s3cret"), "{both}");
    let (two_breaks, empty) = (file("s3cret\n\n"), file("\n"));
    for (named, complaint) in [
        (path(&two_breaks), "ends with a line break"),
        (path(&empty), "which is empty"),
        ("/nowhere/password".to_owned(), "cannot be read"),
    ] {
        let report = errors(&[("NOTIFICATION_REDIS_PASSWORD_FILE", &named)]);
        assert!(report.contains(complaint) && !report.contains("s3cret"), "{report}");
    }
    // Only secrets may be read from files.
    let warnings = loaded(&[("NOTIFICATION_REDIS_DB_FILE", &password)]).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn a_command_reads_only_the_files_of_what_it_uses() {
    let nowhere = ("NOTIFICATION_REDIS_PASSWORD_FILE", "/nowhere/password");
    load::<Postgres>(vars(&[nowhere])).expect("migrate needs PostgreSQL only");
}

#[test]
fn a_password_that_looks_like_a_number_stays_as_it_is() {
    let config = loaded(&[("NOTIFICATION_REDIS_PASSWORD", "0123")]).config;
    assert_eq!(config.redis.password.expose(), Some("0123"));
}
