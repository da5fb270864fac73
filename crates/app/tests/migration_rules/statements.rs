//! Splits an SQL script into statements, as far as migrations need it.

/// A statement without comments and with single spaces: one is before `(`, after `)` and after a comma. Each
/// string literal is replaced by `''`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Statement(pub(crate) String);

impl Statement {
    /// The text after `prefix`, which is compared without regard to case.
    pub(crate) fn after(&self, prefix: &str) -> Option<&str> {
        let (head, rest) = self.0.split_at_checked(prefix.len())?;
        head.eq_ignore_ascii_case(prefix).then_some(rest)
    }
}

/// The statements of a script. The statements in the body of `DO` are included, those in the body of a
/// function are not.
pub(crate) fn statements(sql: &str) -> Vec<Statement> {
    let mut found = Vec::new();
    let (mut current, mut rest) = (String::new(), sql);
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if first == '\'' {
            rest = text_end(&rest[1..]);
            current.push_str("''");
        } else if let Some((tag, after)) = dollar_tag(rest) {
            let (body, after) = after.split_once(tag).expect("a dollar quote ends");
            if current.trim_start().to_uppercase().starts_with("DO") {
                current.clear();
                found.extend(statements(body).into_iter().filter_map(without_frame));
            }
            rest = after;
        } else if first == ';' {
            found.extend(statement(&std::mem::take(&mut current)));
            rest = &rest[1..];
        } else {
            current.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    found.extend(statement(&current));
    found
}

/// The text after the end of a string literal that has begun: two quotes are one of its characters.
fn text_end(mut rest: &str) -> &str {
    loop {
        let (_, after) = rest.split_once('\'').expect("a text ends");
        match after.strip_prefix('\'') {
            Some(more) => rest = more,
            None => return after,
        }
    }
}

/// The tag `$body$` at the beginning, and the text after it.
fn dollar_tag(text: &str) -> Option<(&str, &str)> {
    let end = text.strip_prefix('$')?.find('$')? + 2;
    let (tag, after) = text.split_at(end);
    tag[1..end - 1].chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some((tag, after))
}

fn statement(text: &str) -> Option<Statement> {
    let text = text.replace(',', ", ").replace('(', " (").replace(')', ") ");
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| Statement(words.join(" ")))
}

/// Removes `BEGIN`, `IF … THEN` and `END` from a statement of a block.
fn without_frame(Statement(mut text): Statement) -> Option<Statement> {
    if let Some(rest) = text.strip_prefix("BEGIN ") {
        text = rest.to_owned();
    }
    if text.starts_with("IF ") {
        text = text.split_once(" THEN ").expect("IF has a THEN").1.to_owned();
    }
    (text != "END IF" && text != "END").then_some(Statement(text))
}
