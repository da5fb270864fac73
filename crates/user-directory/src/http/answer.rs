//! Interpretation of the directory's responses. A response that breaks the contract is an error.

use domain::ports::User;
use serde::Deserialize;

use crate::user;

#[derive(Deserialize)]
struct UserBody {
    user: FoundUser,
}

#[derive(Deserialize)]
struct FoundUser {
    user_id: String,
    email: Option<String>,
    preferred_language: Option<String>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    code: String,
}

/// Parses the user from the body of a 200. An invalid address counts as none.
pub(crate) fn user(asked: &str, body: &[u8]) -> Result<User, String> {
    // The parser's message could contain parts of the body.
    let found: UserBody = serde_json::from_slice(body).map_err(|error| not_as_agreed(200, &error))?;
    let user = found.user;
    if user.user_id != asked {
        return Err("the response is about another user".to_owned());
    }
    Ok(user::of(user.email, user.preferred_language))
}

/// Checks that the body of a 404 means that the user does not exist; any other 404 is from another server or
/// path.
pub(crate) fn missing(body: &[u8]) -> Result<(), String> {
    let failure: ErrorBody = serde_json::from_slice(body).map_err(|error| not_as_agreed(404, &error))?;
    match failure.error.code.as_str() {
        "subject_not_found" => Ok(()),
        _ => Err("status 404 with a code other than subject_not_found".to_owned()),
    }
}

fn not_as_agreed(status: u16, error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    format!("status {status} with an unexpected body (line {line}, column {column})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(email: &str, language: &str) -> Vec<u8> {
        serde_json::json!({"user": {"user_id": "u", "email": email, "preferred_language": language}})
            .to_string()
            .into()
    }

    #[test]
    fn an_address_that_cannot_be_one_is_none() {
        let long = format!("{}@example.com", "x".repeat(309));
        for email in [
            "",
            "nobody",
            "@example.com",
            "u@",
            "u\0@example.com",
            "u @example.com",
            "u@example.com\r\nBcc: x",
            &long,
        ] {
            assert_eq!(user("u", &body(email, "en")).map(|user| user.email), Ok(String::new()), "{email:?}");
        }
        let longest = format!("{}@example.com", "x".repeat(308));
        assert_eq!(user("u", &body(&longest, "en")).map(|user| user.email), Ok(longest));
    }

    #[test]
    fn a_language_that_cannot_be_one_is_none() {
        for language in ["e\0n", &"x".repeat(65)] {
            assert_eq!(
                user("u", &body("u@e.com", language)).map(|user| user.preferred_language),
                Ok(String::new())
            );
        }
    }

    #[test]
    fn an_address_or_a_language_that_is_null_or_left_out_is_none() {
        for body in [
            r#"{"user":{"user_id":"u","email":null,"preferred_language":null}}"#,
            r#"{"user":{"user_id":"u"}}"#,
        ] {
            assert_eq!(user("u", body.as_bytes()), Ok(User::default()), "{body}");
        }
    }

    #[test]
    fn what_is_not_as_agreed_is_no_answer_and_is_not_repeated() {
        for garbage in [
            "",
            "null",
            "[]",
            r#"{"user":{}}"#,
            r#"{"user":{"user_id":7,"email":"secret@example.com"}}"#,
            "<html>",
        ] {
            let error = user("u", garbage.as_bytes()).expect_err(garbage);
            assert!(!error.contains("secret"), "{error}");
            missing(garbage.as_bytes()).expect_err(garbage);
        }
        user("v", &body("u@example.com", "en")).expect_err("another user");
        missing(br#"{"error":{"code":"no_such_route"}}"#).expect_err("another 404");
        assert_eq!(missing(br#"{"error":{"code":"subject_not_found","message":"x"}}"#), Ok(()));
    }
}
