//! The two forms of a connection string as a list of parameters: the query of a URL, and `key=value` words.

use crate::DsnError;

/// A parameter by name and value.
pub(crate) type Pair = (String, String);

/// The parameters of a URL's query.
pub(crate) fn of_query(query: &str) -> Vec<Pair> {
    // A '+' in a connection string is a plus, not a space.
    let query = query.replace('+', "%2B");
    url::form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

/// The query of a URL with these parameters.
pub(crate) fn to_query(pairs: &[Pair]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs);
    // The driver decodes %20 but not '+'.
    query.finish().replace('+', "%20")
}

/// The parameters of a text of `key=value` words. White space may surround the sign; a value with white space
/// is in single quotes; a backslash keeps the next character.
pub(crate) fn of_words(text: &str) -> Result<Vec<Pair>, DsnError> {
    let wrong = |problem: &'static str| DsnError::Syntax(problem.into());
    let mut characters = text.chars().peekable();
    let mut pairs = Vec::new();
    loop {
        while characters.next_if(|next| next.is_whitespace()).is_some() {}
        if characters.peek().is_none() {
            return Ok(pairs);
        }
        let mut name = String::new();
        while let Some(next) = characters.next_if(|next| *next != '=' && !next.is_whitespace()) {
            name.push(next);
        }
        while characters.next_if(|next| next.is_whitespace()).is_some() {}
        if name.is_empty() || characters.next() != Some('=') {
            return Err(wrong("a word has no name, or no = after it"));
        }
        while characters.next_if(|next| next.is_whitespace()).is_some() {}
        let quoted = characters.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match characters.next() {
                Some('\'') if quoted => break,
                Some(white) if !quoted && white.is_whitespace() => break,
                Some('\\') => value.extend(characters.next()),
                Some(other) => value.push(other),
                None if quoted => return Err(wrong("a value has no closing quote")),
                None => break,
            }
        }
        pairs.push((name, value));
    }
}

/// The text of `key=value` words with these parameters.
pub(crate) fn to_words(pairs: &[Pair]) -> String {
    let word =
        |(name, value): &Pair| format!("{name}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
    pairs.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Pair> {
        of_words(text).expect("they are words")
    }

    #[test]
    fn words_are_read_as_libpq_reads_them_and_survive_being_written() {
        let text = r" host = db  user='it''s' password='a \'b\\ c' dbname=x\ y options='' ";
        // The second quote begins a word.
        assert!(of_words(text).is_err());
        let text = r" host = db  user=it\'s password='a \'b\\ c' dbname=x\ y options='' ";
        let expected =
            [("host", "db"), ("user", "it's"), ("password", r"a 'b\ c"), ("dbname", "x y"), ("options", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(words(text), expected);
        assert_eq!(words(&to_words(&expected)), expected);
        assert_eq!(of_query(&to_query(&expected)), expected);
        for wrong in ["host", "=db", "host='db", "host=db port"] {
            assert!(of_words(wrong).is_err(), "{wrong}");
        }
    }
}
