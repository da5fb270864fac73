//! The environment file that the packages install: every variable as a comment, generated from the list of
//! variables.

use super::knob::Knob;
use super::knobs::{ADMIN_EMAILS_PREFIX, AUDIENCE, KNOBS};

const HEAD: &str = "\
# The environment of notification.service: every variable, commented, with its default.
#
# Remove the # in front of what differs. Required are NOTIFICATION_REDIS_MASTER_ADDR (or the variables of Sentinels or of a Cluster in
# its place), NOTIFICATION_POSTGRES_PRIMARY_DSN and a user directory: NOTIFICATION_USER_SERVICE_BASE_URL, or
# NOTIFICATION_USER_DIRECTORY=state. Write a value with other characters than letters, digits and : / . , _ - within single quotes;
# systemd and shells read it alike then. Secrets may be in files of their own, which the group notification may read. docs/config.md,
# below /usr/share/doc/notification, explains more; docs/deployment.md beside it has the command that checks this file.
";

/// The maximum length of a comment line, in characters. A longer word exceeds it.
const WIDTH: usize = 120;

/// The content of deploy/systemd/notification.env.
pub fn page() -> String {
    let sections = KNOBS.chunk_by(|one, next| one.section == next.section);
    let sections: String = sections.map(section).collect();
    [HEAD, &sections].concat()
}

fn section(knobs: &[Knob]) -> String {
    let title = knobs[0].section;
    let variables: String = knobs.iter().map(variable).collect();
    let below = match title {
        AUDIENCE => administrators(),
        _ => String::new(),
    };
    format!("\n\n# --- {title} ---\n{variables}{below}")
}

fn variable(knob: &Knob) -> String {
    let form = match (knob.required, knob.default) {
        (true, _) => format!("Required: {}.", knob.takes),
        (false, "") => format!("Takes {}. Empty by default.", knob.takes),
        (false, _) => format!("Takes {}.", knob.takes),
    };
    let comment = [comment(knob.what), comment(&form)].concat();
    let file = knob.file_variable().map(|name| format!("# Or a file that holds it:\n#{name}=\n"));
    format!("\n{comment}#{}={}\n{}", knob.name, knob.default, file.unwrap_or_default())
}

fn administrators() -> String {
    let what = "The e-mail addresses of the administrators of a notification type, separated by commas. The name has the type in upper case, \
        with underscores for dots.";
    format!("\n{}#{ADMIN_EMAILS_PREFIX}GEO_REVIEW_RECOMMENDED=\n", comment(what))
}

/// Breaks `text` into comment lines of at most [`WIDTH`].
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| line.len() + 1 + word.len() <= WIDTH || line.len() == 1);
        match line {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(format!("# {word}")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, StateConfig, load};

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd/notification.env");

    #[test]
    fn the_file_is_what_the_program_generates() {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(PATH, page()).expect("the environment file can be written");
        }
        let written = std::fs::read_to_string(PATH).expect("the environment file is there");
        assert!(
            written == page(),
            "deploy/systemd/notification.env has drifted: UPDATE_DOCS=1 cargo test -p app writes it again"
        );
    }

    #[test]
    fn no_variable_is_set() {
        for line in page().lines() {
            assert!(line.is_empty() || line.starts_with('#'), "{line}");
        }
    }

    /// The variables with their defaults, as if the # in front of them were removed. Values in `given`
    /// replace those of the page.
    fn uncommented<'a>(given: &'a [(&'a str, &'a str)]) -> Vec<(String, String)> {
        let page = page();
        let assignments = page.lines().filter_map(|line| line.strip_prefix('#')?.split_once('='));
        let variables = assignments.filter(|(name, _)| !name.contains(' '));
        let mut vars: Vec<(String, String)> =
            variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        for (name, value) in given {
            let known = vars.iter_mut().find(|(known, _)| known == name);
            known.unwrap_or_else(|| panic!("{name} is not in the file")).1 = (*value).to_owned();
        }
        vars
    }

    #[test]
    fn a_file_with_every_default_and_what_is_required_is_a_valid_configuration() {
        let given = [
            ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
            ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://n:s@db:5432/galaxy?search_path=notification"),
            ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users:8080"),
        ];
        let loaded = load::<Config>(uncommented(&given)).expect("a valid configuration");
        assert_eq!(loaded.warnings, [""; 0]);
        let given = [("STATE_PROXY_PG_URL", "postgres://s:s@db/galaxy"), ("CONNECTOR_SOCKET", "/run/s.sock")];
        load::<StateConfig>(uncommented(&given)).expect("a valid configuration");
    }

    #[test]
    fn a_comment_is_broken_between_words_and_a_long_word_stays_whole() {
        let long = "x".repeat(WIDTH);
        assert_eq!(comment(&format!("a {long} b")), format!("# a\n# {long}\n# b\n"));
        assert!(page().lines().filter(|line| line.starts_with("# ")).all(|line| line.chars().count() < 140));
    }
}
