//! Tests of the tokens file as operators write it.

use super::*;

const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

fn problems(text: &str) -> Vec<String> {
    match AccessTokens::from_toml(text) {
        Ok(_) => Vec::new(),
        Err(ReloadError::Invalid { problems, .. }) => problems,
        Err(error) => panic!("{error}"),
    }
}

/// An entry with a distinct hash for each name.
fn entry(name: &str, rest: &str) -> String {
    let hash = hex::encode(token_sha256(name));
    format!("[[token]]\nname = {name:?}\nsha256 = \"{hash}\"\n{rest}\n")
}

#[test]
fn a_token_is_known_by_its_hash_and_has_what_its_entry_says() {
    assert_eq!(hex::encode(token_sha256("secret")), HASH);
    let upper = format!("[[token]]\nname = \"all\"\nsha256 = \"{}\"\n", HASH.to_uppercase());
    let all = "producer = \"game\"\nrole = \"operator\"\nconsumer = \"gateway\"\nprefixes = [\"users/\", \"\"]\naccess = \"write\"\n";
    let tokens = AccessTokens::from_toml(&format!("{upper}{all}{}", entry("reader", "prefixes = [\"x\"]")))
        .expect("right");
    let principal = tokens.authenticate("secret").expect("is known");
    assert_eq!(
        principal,
        Principal {
            name: "all".into(),
            producer: Some("game".into()),
            role: Some(Role::Operator),
            consumer: Some(Consumer::Gateway),
            prefixes: Some(Prefixes {
                prefixes: vec!["users/".to_owned(), String::new()].into(),
                access: Access::Write
            }),
        }
    );
    let reader = tokens.authenticate("reader").expect("is known");
    assert_eq!(reader.prefixes.map(|prefixes| prefixes.access), Some(Access::Read));
    for unknown in ["", "Secret", "secret ", HASH] {
        assert_eq!(tokens.authenticate(unknown), None);
    }
}

#[test]
fn a_viewer_sees_personal_data_only_if_its_entry_says_so() {
    for (rest, sees_personal) in [("", false), ("see = []", false), ("see = [\"personal\"]", true)] {
        let tokens = AccessTokens::from_toml(&entry("a", &format!("role = \"viewer\"\n{rest}")));
        let viewer = tokens.expect("right").authenticate("a").expect("is known");
        assert_eq!(viewer.role, Some(Role::Viewer { sees_personal }), "{rest}");
        assert_eq!((viewer.is_operator(), viewer.sees_personal()), (false, sees_personal), "{rest}");
    }
}

#[test]
fn a_file_may_be_empty() {
    for text in ["", "\n# no one yet\n", "token = []"] {
        assert_eq!(problems(text), Vec::<String>::new());
    }
}

#[test]
fn what_is_wrong_is_named_by_entry_with_what_to_do() {
    let right = "role = \"operator\"";
    for (text, expected) in [
        (entry("a", ""), "entry 1 (a) allows nothing: add producer"),
        (entry("a", "access = \"read\""), "entry 1 (a) has access without prefixes"),
        (
            entry("a", "role = \"king\""),
            "entry 1 (a) has a wrong role: it must be \"viewer\" or \"operator\"",
        ),
        (entry("a", "role = \"viewer\"\nsee = [\"all\"]"), "entry 1 (a) has a wrong see"),
        (entry("a", "role = \"viewer\"\nsee = \"personal\""), "entry 1 (a) has a wrong see"),
        (entry("a", "role = \"operator\"\nsee = [\"personal\"]"), "entry 1 (a) has see without role"),
        (entry("a", "producer = \"p\"\nsee = []"), "entry 1 (a) has see without role"),
        (entry("a", "role = true"), "entry 1 (a) has a wrong role"),
        (
            entry("a", "consumer = \"fax\""),
            "entry 1 (a) has a wrong consumer: it must be \"mail\" or \"gateway\"",
        ),
        (entry("a", "producer = \" x\""), "entry 1 (a) has a wrong producer"),
        (entry("a", "prefixes = []"), "entry 1 (a) has wrong prefixes"),
        (entry("a", "prefixes = \"x\""), "entry 1 (a) has wrong prefixes"),
        (entry("a", "prefixes = [\"x\"]\naccess = \"all\""), "entry 1 (a) has a wrong access"),
        (
            entry("a", "role = \"operator\"\ncolour = 1"),
            "entry 1 (a) has unknown members; the known ones are name, sha256",
        ),
        (entry("", right), "entry 1 has a wrong name"),
        (format!("[[token]]\nsha256 = \"{HASH}\"\n{right}"), "entry 1 needs a name"),
        (format!("[[token]]\nname = \"a\"\n{right}"), "entry 1 (a) needs sha256"),
        (
            format!("[[token]]\nname = \"a\"\nsha256 = \"{}\"\n{right}", &HASH[1..]),
            "entry 1 (a) needs sha256",
        ),
        (entry("a", right) + &entry("a", right), "entry 2 (a) has the name of an earlier entry"),
        (
            entry("a", right) + &entry("a", right).replace("\"a\"", "\"b\""),
            "entry 2 (b) has the sha256 of an earlier entry",
        ),
        ("token = 1".to_owned(), "token must be a list"),
        ("token = [1]".to_owned(), "entry 1 must be a table"),
        ("[token]\nname = \"a\"".to_owned(), "token must be a list"),
        (format!("colour = 1\n{}", entry("a", right)), "it has members outside of its entries"),
        (entry("a", right) + "[[token]]\nname = \"half", "line 6 is not TOML"),
        (entry("a", right) + "name = \"twice\"", "line 5 is not TOML"),
    ] {
        let found = problems(&text);
        assert!(found.first().is_some_and(|first| first.starts_with(expected)), "{text}: {found:?}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once_and_no_hash_ever() {
    let text = format!(
        "[[token]]\nname = \"a\"\nsha256 = \"{HASH}0\"\nrole = \"{HASH}\"\n[[token]]\nname = \"\\n{HASH}\"\nproducer = [\"{HASH}\"]\nconsumer = \"{HASH}\"\n\"{HASH}\" = 1\n"
    );
    let found = problems(&text);
    assert!(found.len() > 5, "{found:?}");
    for text in [&text, &format!("[[token]]\nname = \"a\"\nsha256 = \"{HASH}\n"), &format!("{HASH}\n{HASH}")]
    {
        let error = AccessTokens::from_toml(text).expect_err("is wrong");
        assert!(!format!("{error} {error:?}").contains(&HASH[..8]), "{error:?}");
    }
    let right = AccessTokens::from_toml(&entry("a", "role = \"operator\"")).expect("right");
    assert!(!format!("{right:?}").contains(&hex::encode(token_sha256("a"))[..8]), "{right:?}");
}

#[test]
fn producers_that_are_not_known_are_named() {
    let text = entry("a", "producer = \"game\"")
        + &entry("b", "producer = \"post\"")
        + &entry("c", "role = \"operator\"");
    let tokens = AccessTokens::from_toml(&text).expect("right");
    let unknown = tokens.unknown_producers(&BTreeSet::from(["game".to_owned()]));
    assert_eq!(unknown, [("b".into(), "post".into())]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_in_force_within_ten_seconds_and_a_wrong_one_never() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tokens.toml");
    let write = |text: &str| std::fs::write(&path, text).expect("is written");
    let after_ten_seconds = || tokio::time::sleep(std::time::Duration::from_secs(10));
    write(&entry("a", "role = \"operator\""));
    let tokens = AccessTokens::load(&path).expect("right");
    let (following, stop) = (tokens.clone(), CancellationToken::new());
    let following = tokio::spawn({
        let stop = stop.clone();
        async move { following.follow(BTreeSet::new(), stop).await }
    });
    for wrong in ["[[token]]\nname = \"ha", "[[token]]\nname = \"b\"\n", "\u{0}"] {
        write(wrong);
        after_ten_seconds().await;
        assert!(tokens.authenticate("a").is_some(), "{wrong:?}");
    }
    std::fs::remove_file(&path).expect("was there");
    after_ten_seconds().await;
    assert!(tokens.authenticate("a").is_some(), "a file that is gone");
    write(&entry("b", "role = \"operator\""));
    after_ten_seconds().await;
    assert!(tokens.authenticate("a").is_none() && tokens.authenticate("b").is_some());
    write("");
    after_ten_seconds().await;
    assert!(tokens.authenticate("b").is_none());
    stop.cancel();
    following.await.expect("does not panic");
}
