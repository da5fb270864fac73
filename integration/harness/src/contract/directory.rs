//! Lookups return a result for each user, in the requested order.

use domain::ports::{Lookup, User, UserDirectory};

/// A directory under test.
pub trait DirectoryFixture {
    /// The directory.
    fn directory(&self) -> &impl UserDirectory;

    /// Sets the result of lookups of a user; for [`Lookup::Unavailable`] the directory chooses the cause.
    fn set(&self, user_id: &str, lookup: &Lookup) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::directory`], each on a fixture of its own.
#[macro_export]
macro_rules! directory_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            directory, $fixture;
            answers_are_in_the_order_asked_and_as_many_as_asked,
            a_user_without_an_answer_keeps_no_other_from_one,
            a_user_is_found_again_when_the_directory_answers_again,
            a_question_about_no_user_has_no_answer,
        );
    };
}

fn found(name: &str) -> Lookup {
    Lookup::Found(User { email: format!("{name}@example.com"), preferred_language: "fr".to_owned() })
}

fn unavailable() -> Lookup {
    Lookup::Unavailable("no answer".to_owned())
}

pub async fn answers_are_in_the_order_asked_and_as_many_as_asked(fixture: impl DirectoryFixture) {
    for (user, lookup) in [("one", found("one")), ("two", found("two")), ("gone", Lookup::Missing)] {
        fixture.set(user, &lookup).await;
    }
    let answers = fixture.directory().look_up(&["two", "gone", "one", "two"]).await;
    assert_eq!(answers, [found("two"), Lookup::Missing, found("one"), found("two")]);
}

pub async fn a_user_without_an_answer_keeps_no_other_from_one(fixture: impl DirectoryFixture) {
    fixture.set("one", &found("one")).await;
    fixture.set("down", &unavailable()).await;
    fixture.set("two", &found("two")).await;
    let answers = fixture.directory().look_up(&["one", "down", "two"]).await;
    assert!(
        matches!(&answers[..], [Lookup::Found(_), Lookup::Unavailable(_), Lookup::Found(_)]),
        "{answers:?}"
    );
}

pub async fn a_user_is_found_again_when_the_directory_answers_again(fixture: impl DirectoryFixture) {
    for missing in [unavailable(), Lookup::Missing] {
        fixture.set("one", &missing).await;
        let answers = fixture.directory().look_up(&["one"]).await;
        assert_eq!(std::mem::discriminant(&answers[0]), std::mem::discriminant(&missing));
    }
    fixture.set("one", &found("one")).await;
    assert_eq!(fixture.directory().look_up(&["one"]).await, [found("one")]);
}

pub async fn a_question_about_no_user_has_no_answer(fixture: impl DirectoryFixture) {
    assert_eq!(fixture.directory().look_up(&[]).await, []);
}
