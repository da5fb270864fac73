use state::{MemoryStore, Value};

use super::*;

const SETTINGS: StateDirectorySettings =
    StateDirectorySettings { concurrency: 2, cache_ttl: Duration::ZERO, cache_entries: 0 };

fn directory(documents: &[(&str, &str)]) -> StateUserDirectory<MemoryStore> {
    let store = MemoryStore::default();
    let documents = documents.iter().map(|(id, text)| {
        (Key::new(&format!("users/{id}")).expect("a key"), Value::parse(text).expect("JSON"))
    });
    store.put_many(&documents.collect::<Vec<_>>()).expect("they are stored");
    StateUserDirectory::new(store, SETTINGS)
}

fn found(email: &str, language: &str) -> Lookup {
    Lookup::Found(User { email: email.to_owned(), preferred_language: language.to_owned() })
}

#[tokio::test]
async fn a_document_whose_email_is_no_string_is_a_user_without_address_and_language() {
    let large = format!(r#"{{"email":"{}","preferred_language":"fr"}}"#, "x".repeat(MAX_MEMBER_BYTES));
    for text in [
        "null",
        "[]",
        "7",
        r#""u@example.com""#,
        r#"["email"]"#,
        r#"{"email":null,"preferred_language":"fr"}"#,
        r#"{"email":7,"preferred_language":"fr"}"#,
        r#"{"email":["u@example.com"],"preferred_language":"fr"}"#,
        &large,
    ] {
        let directory = directory(&[("u", text)]);
        assert_eq!(directory.look_up(&["u"]).await, [found("", "")], "{text}");
        assert!(
            directory.shared.warnings.due(&["v"], Instant::now()).is_none(),
            "there was a warning: {text}"
        );
    }
}

#[tokio::test]
async fn of_a_document_with_an_address_the_rest_is_used_as_far_as_it_can_be() {
    for (text, expected) in [
        (
            r#"{"email":"u@example.com","preferred_language":"fr","plan":{"a":1}}"#,
            found("u@example.com", "fr"),
        ),
        (r#"{"email":"u@example.com"}"#, found("u@example.com", "")),
        (r#"{"email":"u@example.com","preferred_language":7}"#, found("u@example.com", "")),
        (r#"{"email":"no address","preferred_language":"fr"}"#, found("", "fr")),
        (r#"{"email":"","preferred_language":"fr"}"#, found("", "fr")),
        (r#"{"preferred_language":"fr"}"#, found("", "fr")),
        ("{}", found("", "")),
        (r#"{"email":"\u00fc@example.com"}"#, found("ü@example.com", "")),
    ] {
        let directory = directory(&[("u", text)]);
        assert_eq!(directory.look_up(&["u"]).await, [expected], "{text}");
    }
}

#[tokio::test]
async fn a_user_whose_key_would_be_too_long_does_not_exist() {
    let longest = "u".repeat(state::MAX_KEY_BYTES - USERS_PREFIX.len());
    let directory = directory(&[(&longest, "{}")]);
    let answers = directory.look_up(&[&longest, &format!("{longest}u"), "nul\0"]).await;
    assert_eq!(answers, [found("", ""), Lookup::Missing, Lookup::Missing]);
}

#[tokio::test]
async fn more_users_than_one_statement_reads_are_all_answered() {
    let ids: Vec<String> = (0..2 * MAX_USERS_PER_READ + 1).map(|n| n.to_string()).collect();
    let last = ids.last().expect("one");
    let directory = directory(&[("0", "{}"), (last, "{}")]);
    let answers = directory.look_up(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(answers.len(), ids.len());
    let exist: Vec<usize> = (0..ids.len()).filter(|n| answers[*n] != Lookup::Missing).collect();
    assert_eq!(exist, [0, ids.len() - 1]);
}
