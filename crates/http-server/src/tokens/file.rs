//! The tokens file: TOML, checked entry by entry.
//!
//! Messages name members and entries, never a value that could be a hash or a token in the wrong place.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use toml::{Table, Value};

use super::{Access, Consumer, Prefixes, Principal, Role, TokenDigest, TokenSet};

/// The longest name of a token or producer, in bytes.
const MAX_NAME: usize = 128;
/// The longest prefix, in bytes: equal to the longest key of the state store.
const MAX_PREFIX: usize = 1024;
/// The most prefixes of one token.
const MAX_PREFIXES: usize = 100;

const MEMBERS: &str = "name, sha256, producer, role, see, consumer, prefixes and access";

/// Parses the tokens in `text`, or returns all its faults.
pub(super) fn parse(text: &[u8]) -> Result<TokenSet, Vec<String>> {
    let text = std::str::from_utf8(text).map_err(|_| vec!["it is not UTF-8".to_owned()])?;
    let mut table: Table = text.parse().map_err(|error| vec![not_toml(text, &error)])?;
    let mut problems = Vec::new();
    let entries = match table.remove("token") {
        None => Vec::new(),
        Some(Value::Array(entries)) => entries,
        Some(_) => {
            problems.push("token must be a list: write [[token]] above each entry".to_owned());
            Vec::new()
        }
    };
    if !table.is_empty() {
        problems.push("it has members outside of its entries: write [[token]] above each entry".to_owned());
    }
    let mut set = HashMap::new();
    let mut names = HashSet::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let mut reader = EntryParser::new(index, entry, &mut problems);
        let Some((hash, principal)) = reader.read() else { continue };
        if !names.insert(Arc::clone(&principal.name)) {
            reader.problem("has the name of an earlier entry: give each token its own");
        } else if set.insert(hash, principal).is_some() {
            reader.problem("has the sha256 of an earlier entry: make a token for each");
        }
    }
    if problems.is_empty() { Ok(TokenSet(set)) } else { Err(problems) }
}

/// The line and kind of a syntax error, without the text of the line.
fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let line = |span: std::ops::Range<usize>| {
        text.as_bytes()[..span.start.min(text.len())].split(|byte| *byte == b'\n').count()
    };
    match error.span().map(line) {
        Some(line) => format!("line {line} is not TOML: complete or remove it"),
        None => "it is not TOML".to_owned(),
    }
}

/// One entry while it is parsed. Collects every problem.
struct EntryParser<'a> {
    label: String,
    table: Table,
    is_table: bool,
    failed: bool,
    problems: &'a mut Vec<String>,
}

impl<'a> EntryParser<'a> {
    fn new(index: usize, value: Value, problems: &'a mut Vec<String>) -> Self {
        let (table, is_table) = match value {
            Value::Table(table) => (table, true),
            _ => (Table::new(), false),
        };
        let name = table.get("name").and_then(Value::as_str).filter(|name| is_name(name));
        let label = match name {
            Some(name) => format!("entry {} ({name})", index + 1),
            None => format!("entry {}", index + 1),
        };
        Self { label, table, is_table, failed: false, problems }
    }

    fn problem(&mut self, text: &str) {
        self.failed = true;
        self.problems.push(format!("{} {text}", self.label));
    }

    fn read(&mut self) -> Option<(TokenDigest, Principal)> {
        if !self.is_table {
            self.problem("must be a table: write [[token]] above it");
            return None;
        }
        let name = self.name("name");
        let hash = self.hash();
        let producer = self.name("producer");
        let role = self.role();
        let consumer = self.word("consumer", &[("mail", Consumer::Mail), ("gateway", Consumer::Gateway)]);
        let access = self.word("access", &[("read", Access::Read), ("write", Access::Write)]);
        let prefixes = self.prefixes();
        if access.is_some() && prefixes.is_none() {
            self.problem("has access without prefixes: add prefixes or remove access");
        }
        if name.is_none() {
            self.problem("needs a name");
        }
        if !self.table.is_empty() {
            self.problem(&format!("has unknown members; the known ones are {MEMBERS}"));
        }
        if producer.is_none() && role.is_none() && consumer.is_none() && prefixes.is_none() && !self.failed {
            self.problem("allows nothing: add producer, role, consumer or prefixes");
        }
        let prefixes = prefixes.map(|prefixes| Prefixes { prefixes, access: access.unwrap_or(Access::Read) });
        let principal = Principal { name: name?, producer, role, consumer, prefixes };
        (!self.failed).then_some((hash?, principal))
    }

    fn name(&mut self, member: &str) -> Option<Arc<str>> {
        match self.table.remove(member)? {
            Value::String(name) if is_name(&name) => Some(name.into()),
            _ => {
                let rule = "1 to 128 bytes without control characters and without white space at its ends";
                self.problem(&format!("has a wrong {member}: it takes a string of {rule}"));
                None
            }
        }
    }

    fn hash(&mut self) -> Option<TokenDigest> {
        let value = self.table.remove("sha256");
        let mut hash = [0; 32];
        let text = value.as_ref().and_then(Value::as_str).unwrap_or_default();
        if hex::decode_to_slice(text, &mut hash).is_err() {
            self.problem("needs sha256: the SHA-256 of the token in 64 hexadecimal digits");
            return None;
        }
        Some(TokenDigest(hash))
    }

    fn word<T: Copy>(&mut self, member: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.table.remove(member)?;
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        if found.is_none() {
            let known: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            self.problem(&format!("has a wrong {member}: it must be {}", known.join(" or ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    fn role(&mut self) -> Option<Role> {
        let viewer = Role::Viewer { sees_personal: false };
        let role = self.word("role", &[("viewer", viewer), ("operator", Role::Operator)]);
        let Some(see) = self.table.remove("see") else { return role };
        let words = see.as_array().filter(|words| words.iter().all(|word| word.as_str() == Some("personal")));
        match (role, words) {
            (_, None) => {
                self.problem("has a wrong see: it must be a list, and \"personal\" is its only word");
                None
            }
            (Some(Role::Viewer { .. }), Some(words)) => {
                Some(Role::Viewer { sees_personal: !words.is_empty() })
            }
            _ => {
                self.problem("has see without role = \"viewer\": remove see, an operator sees everything");
                None
            }
        }
    }

    fn prefixes(&mut self) -> Option<Arc<[String]>> {
        let value = self.table.remove("prefixes")?;
        let items = value.as_array().filter(|items| (1..=MAX_PREFIXES).contains(&items.len()));
        let text = |item: &Value| item.as_str().filter(|text| text.len() <= MAX_PREFIX).map(str::to_owned);
        let prefixes = items.and_then(|items| items.iter().map(text).collect::<Option<Vec<String>>>());
        if prefixes.is_none() {
            let rule = format!("1 to {MAX_PREFIXES} strings of at most {MAX_PREFIX} bytes");
            self.problem(&format!("has wrong prefixes: it must be a list of {rule}"));
        }
        prefixes.map(Into::into)
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && text.trim() == text && !text.chars().any(char::is_control)
}
