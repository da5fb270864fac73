//! The `options` of a connection, as the server reads them.

/// The settings in `options` by name, in their order; `None` if it contains anything but settings, such as
/// another switch of the server's program.
pub(crate) fn settings(options: &str) -> Option<Vec<(String, String)>> {
    let mut words = words(options).into_iter();
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("-c") {
            Some("") => words.next()?,
            Some(setting) => setting.to_owned(),
            None => word.strip_prefix("--")?.to_owned(),
        };
        let (name, value) = setting.split_once('=')?;
        // The server treats a dash as an underscore.
        settings.push((name.replace('-', "_"), value.to_owned()));
    }
    Some(settings)
}

/// The words of a text, separated by white space; a backslash keeps the next character in its word.
fn words(options: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.get_or_insert_default().extend(characters.next()),
            white if white.is_ascii_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// The statement that sets `settings` for the session.
pub(crate) fn statement(settings: &[(String, String)]) -> String {
    let quoted = |text: &str| format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let calls = settings.iter().map(|(name, value)| {
        // Not SET, which would treat a list of schemas as one name.
        format!("pg_catalog.set_config({}, {}, false)", quoted(name), quoted(value))
    });
    format!("SELECT {}", calls.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_the_server_reads_them_and_anything_else_is_no_list_of_settings() {
        let read = |text| {
            let settings = settings(text)?;
            Some(settings.into_iter().map(|(name, value)| format!("{name}|{value}")).collect::<Vec<_>>())
        };
        let text = r"-c a=1  -cb=x\ y --statement-timeout=5s -c search_path=s,\ t\\u -c d=k=v";
        let expected = ["a|1", "b|x y", "statement_timeout|5s", r"search_path|s, t\u", "d|k=v"];
        assert_eq!(read(text), Some(expected.map(str::to_owned).to_vec()));
        assert_eq!(read(""), Some(Vec::new()));
        for other in ["-E", "-c", "-c name", "a=1", "--name"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn a_value_stays_a_value_whatever_it_holds() {
        let settings = [("search_path".to_owned(), r"it's, a\b".to_owned())];
        assert_eq!(
            statement(&settings),
            r"SELECT pg_catalog.set_config(E'search_path', E'it\'s, a\\b', false)"
        );
    }
}
