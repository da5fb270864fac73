//! The notification types, the administrators who receive them, and the languages.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;

use domain::catalog::{AudienceKind, Catalog, NotificationType};

use super::knob::Takes;
use super::knobs::{NOTIFICATION_CATALOG_PATH, NOTIFICATION_LOCALES};
use super::problem::quote;
use super::reader::{Reader, Section};
use super::value::Value;
use super::{read_bounded, split_list};

/// The maximum length of an e-mail address, in bytes.
const MAX_EMAIL_BYTES: usize = 320;

/// The maximum length of a language tag, in bytes.
const MAX_LANGUAGE_TAG_BYTES: usize = 35;

/// The notification types, administrators and languages.
#[derive(Debug, Clone)]
pub struct AudienceRules {
    /// The notification types.
    pub catalog: Arc<Catalog>,
    /// E-mail addresses by notification type, without duplicates. Types without addresses are left out.
    pub admin_emails: HashMap<String, Vec<String>>,
    /// Language tags as configured, without duplicates.
    pub locales: Vec<String>,
}

impl Section for AudienceRules {
    fn read(reader: &mut Reader) -> Option<Self> {
        let catalog = Arc::<Catalog>::read(reader);
        let locales = reader.get::<LanguageTags>(&NOTIFICATION_LOCALES);
        let admin_emails = catalog.as_deref().and_then(|catalog| read_admin_emails(reader, catalog));
        Some(Self { catalog: catalog?, admin_emails: admin_emails?, locales: locales?.0 })
    }
}

/// The catalogue of the configured file, or the built-in one.
impl Section for Arc<Catalog> {
    fn read(reader: &mut Reader) -> Option<Self> {
        reader.get::<CatalogFile>(&NOTIFICATION_CATALOG_PATH).map(|file| file.catalog)
    }
}

/// A catalogue, and the path of its file.
struct CatalogFile {
    catalog: Arc<Catalog>,
    /// Empty for the built-in catalogue.
    path: String,
}

impl Value for CatalogFile {
    fn parse(path: &str, _: &Takes) -> Result<Self, String> {
        let catalog = if path.is_empty() { Catalog::built_in() } else { parse_catalog(path)? };
        Ok(Self { catalog: Arc::new(catalog), path: path.to_owned() })
    }

    fn show(&self) -> String {
        self.path.clone()
    }
}

fn parse_catalog(path: &str) -> Result<Catalog, String> {
    let text = File::open(path)
        .and_then(read_bounded)
        .map_err(|error| format!("the file cannot be read ({error})"))?;
    Catalog::parse(&text).map_err(|error| format!("not a catalogue file ({error})"))
}

/// Reads the variable of each type that administrators may receive. Warns of variables that belong to no such
/// type.
fn read_admin_emails(reader: &mut Reader, catalog: &Catalog) -> Option<HashMap<String, Vec<String>>> {
    let mut given = reader.take_admin_emails();
    let mut emails = HashMap::new();
    let mut whole = true;
    let variables = admin_variables(catalog);
    for (variable, notification_type) in &variables {
        match parse_addresses(given.remove(variable).as_deref().unwrap_or_default()) {
            Ok(addresses) => {
                reader.show(variable, addresses.join(","), "");
                if !addresses.is_empty() {
                    emails.insert(notification_type.clone(), addresses);
                }
            }
            Err(reason) => {
                reader.problem(variable, format!("{reason}; it takes e-mail addresses, separated by commas"));
                whole = false;
            }
        }
    }
    for name in given.keys() {
        reader.warn_unknown(name, variables.keys().map(String::as_str));
    }
    whole.then_some(emails)
}

/// The types that administrators may receive, by the name of their variable.
fn admin_variables(catalog: &Catalog) -> BTreeMap<String, String> {
    let for_admins = |known: &&NotificationType| known.channels(AudienceKind::AdminEmail).is_some();
    let types = catalog.types().filter(for_admins);
    types.map(|known| (known.admin_emails_variable(), known.name().to_owned())).collect()
}

/// The addresses in the given order, without duplicates.
fn parse_addresses(text: &str) -> Result<Vec<String>, String> {
    let mut addresses: Vec<String> = Vec::new();
    for address in split_list(text) {
        if let Some(reason) = fault_of_address(address) {
            return Err(format!("holds {}, which {reason}", quote(address)));
        }
        if !addresses.iter().any(|known| known == address) {
            addresses.push(address.to_owned());
        }
    }
    Ok(addresses)
}

/// The reason why `text` is not an e-mail address, or `None` if it is one.
fn fault_of_address(text: &str) -> Option<&'static str> {
    let name_and_host = text.split_once('@').filter(|(name, host)| !name.is_empty() && !host.is_empty());
    if text.len() > MAX_EMAIL_BYTES {
        Some("is longer than 320 bytes")
    } else if text.chars().any(|c| c.is_whitespace() || c.is_control() || c == char::REPLACEMENT_CHARACTER) {
        Some("holds white space or a control character")
    } else if name_and_host.is_none_or(|(_, host)| host.contains('@')) {
        Some("is not one name, one @ and one host")
    } else {
        None
    }
}

/// Language tags in the given order, without duplicates.
struct LanguageTags(Vec<String>);

impl Value for LanguageTags {
    fn parse(text: &str, _: &Takes) -> Result<Self, String> {
        parse_locales(text).map(Self)
    }

    fn show(&self) -> String {
        self.0.join(",")
    }
}

/// The list is never empty, because an empty variable has the default.
fn parse_locales(text: &str) -> Result<Vec<String>, String> {
    let mut tags: Vec<String> = Vec::new();
    for tag in split_list(text) {
        let well_formed =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if tag.len() > MAX_LANGUAGE_TAG_BYTES || !tag.split('-').all(well_formed) {
            return Err(format!("{} is not a language tag", quote(tag)));
        }
        if !tags.iter().any(|known| known.eq_ignore_ascii_case(tag)) {
            tags.push(tag.to_owned());
        }
    }
    if tags.is_empty() { Err("it names no language".to_owned()) } else { Ok(tags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_name_one_at_and_one_host() {
        assert_eq!(
            parse_addresses("ops@example.com, on-call@example.com,ops@example.com,"),
            Ok(vec!["ops@example.com".to_owned(), "on-call@example.com".to_owned()])
        );
        let too_long = format!("{}@example.com", "x".repeat(309));
        for text in
            ["ops", "@example.com", "ops@", "a@b@c", "o ps@example.com", "ops@exam\u{0}ple.com", &too_long]
        {
            assert!(parse_addresses(text).is_err(), "{text}");
        }
    }

    #[test]
    fn languages_that_differ_by_case_alone_are_one() {
        assert_eq!(parse_locales("en, pt-BR,EN"), Ok(vec!["en".to_owned(), "pt-BR".to_owned()]));
        for text in ["e n", "en_US", "-en", ",", "en--US", &"x".repeat(36)] {
            assert!(parse_locales(text).is_err(), "{text}");
        }
    }
}
