//! Connection strings of PostgreSQL: a whole one; and three parts separated by 0x1e: a user, a password and
//! the rest of one.

use ambient::error_chain;
use pg::Dsn;

use crate::Target;
use crate::text::{SECRET, names_a_device, records};

pub(super) const TARGET: Target = Target { name: "dsn", max_bytes: 1024, check };

fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    if names_a_device(text) {
        return;
    }
    if let Ok(dsn) = Dsn::parse(text) {
        check_shown(&dsn, text);
    }
    let mut parts = records(input).map(|part| str::from_utf8(part).unwrap_or_default());
    let mut part = || parts.next().unwrap_or_default();
    check_password(part(), part(), part());
}

/// Checks that a string that is shown is parsed as the same one. Characters are shown without escapes, and
/// parts of the base only there, so strings that need escapes or repeat a part are left out.
fn check_shown(dsn: &Dsn, text: &str) {
    let (shown, text) = (dsn.to_string(), text.trim());
    assert_eq!(format!("{dsn:?}"), shown);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.,:/@=?&*-".contains(&byte);
    let repeats = ["host=", "hostaddr=", "user=", "password=", "dbname=", "port="]
        .iter()
        .any(|name| text.contains(name));
    if text.starts_with("postgres") && text.bytes().all(is_plain) && !repeats && !shown.contains("=&") {
        let again = Dsn::parse(&shown).map(|dsn| dsn.to_string());
        assert!(again.as_ref().is_ok_and(|again| *again == shown), "{shown} is shown as {again:?}");
    }
}

/// Checks that a password is shown nowhere, however its string is written, also if its characters are not
/// escaped as they must be.
fn check_password(user: &str, password: &str, rest: &str) {
    // Parts with a part of the secret can become the secret, where they may be shown.
    if [user, password, rest].iter().any(|part| part.contains(&SECRET[2..])) {
        return;
    }
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    // A password that is not escaped can hold a word or a parameter of its own.
    let ends = |next: char| next.is_whitespace() || next == '\'';
    let is_word = password.contains(ends) && password.contains('=');
    let is_parameter = password.contains('?') && password.contains('=');
    let mut strings = vec![format!("user=u password='{}{SECRET}' host={rest}", quoted(password))];
    if !is_parameter && !user.contains(['@', '/', '?', '[']) {
        strings.push(format!("postgres://{user}:{password}{SECRET}@{rest}"));
        strings.push(format!("postgres://{user}:{SECRET}{password}@{rest}"));
    }
    if !is_word {
        strings.push(format!("host=db password={password}{SECRET}"));
    }
    for string in strings {
        let shown = match Dsn::parse(&string) {
            Ok(dsn) => format!("{dsn} {dsn:?}"),
            Err(error) => format!("{} {error} {error:?}", error_chain(&error)),
        };
        assert!(!shown.contains(SECRET), "{string:?} is shown as {shown}");
    }
}
