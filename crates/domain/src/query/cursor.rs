//! Cursors: a place in a list as opaque text that a client sends back unchanged.
//!
//! The text is base64url of a JSON array: the version of the format, a digest of the query, and the place.
//! The digest binds the cursor to its query: with other filters the place would have another meaning, and
//! items would be omitted silently. The cursor is neither a secret nor signed: a client that forges one gets
//! a page that begins elsewhere, but no item that it may not read.

use ambient::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The longest cursor, in bytes: several times as long as the longest place.
const MAX_CURSOR: usize = 8 * 1024;
/// The number of bytes of the query's digest in a cursor.
const DIGEST_BYTES: usize = 12;

/// The text is not a cursor, or belongs to another query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a cursor of this query: leave it out to begin with the first page")]
pub struct InvalidCursor;

/// A place in a list that is selected by a filter.
pub trait Place: Sized {
    /// The query that selects the items of the list.
    type Filter: Query;

    /// The time and the texts that form the place, in the order of the list.
    fn parts(&self) -> (Timestamp, Vec<&str>);

    /// The place with these parts; `None` if their number is wrong.
    fn from_parts(at: Timestamp, texts: Vec<String>) -> Option<Self>;

    /// The place as a cursor for the list that `filter` selects.
    fn to_cursor(&self, filter: &Self::Filter) -> String {
        let (at, texts) = self.parts();
        let cursor = serde_json::json!([1, digest(filter), at.as_micros(), texts]);
        URL_SAFE_NO_PAD.encode(cursor.to_string())
    }

    /// The place of a cursor that [`Place::to_cursor`] returned for the same filter.
    fn from_cursor(cursor: &str, filter: &Self::Filter) -> Result<Self, InvalidCursor> {
        parse(cursor, &digest(filter))
            .and_then(|(at, texts)| Self::from_parts(at, texts))
            .ok_or(InvalidCursor)
    }
}

/// A query that selects the items of a list.
pub trait Query {
    /// The name of the list.
    const LIST: &'static str;

    /// All conditions, each always at the same index.
    fn conditions(&self) -> Vec<Option<String>>;
}

fn digest(query: &impl Query) -> String {
    fn list<Q: Query>(_: &Q) -> &'static str {
        Q::LIST
    }
    let text = serde_json::json!([list(query), query.conditions()]).to_string();
    URL_SAFE_NO_PAD.encode(&Sha256::digest(text)[..DIGEST_BYTES])
}

fn parse(cursor: &str, digest: &str) -> Option<(Timestamp, Vec<String>)> {
    if cursor.len() > MAX_CURSOR {
        return None;
    }
    let json: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let [version, of_query, at, texts] = json.as_array()?.as_slice() else { return None };
    if version != 1 || of_query != digest {
        return None;
    }
    let texts =
        texts.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    Some((Timestamp::from_micros(at.as_i64()?).ok()?, texts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{
        DeadLetterFilter, DeadLetterPlace, MalformedFilter, MalformedPlace, NotificationFilter,
    };
    use crate::record::RecordCursor;
    use crate::route::RouteKey;

    fn place() -> RecordCursor {
        RecordCursor {
            accepted_at: Timestamp::from_micros(1_775_121_700_000_123).expect("in range"),
            notification_id: "1775121700000-0~1".to_owned().into(),
        }
    }

    #[test]
    fn a_cursor_gives_back_its_place() {
        let filter = NotificationFilter { recipient: Some("u-1".into()), ..NotificationFilter::default() };
        let cursor = place().to_cursor(&filter);
        assert_eq!(RecordCursor::from_cursor(&cursor, &filter), Ok(place()));
        let key = RouteKey { notification_id: "1-0".to_owned().into(), route_id: "push:user:a/\"b".into() };
        let dead = DeadLetterPlace { created_at: Timestamp::MIN, key };
        let filter = DeadLetterFilter::default();
        assert_eq!(DeadLetterPlace::from_cursor(&dead.to_cursor(&filter), &filter), Ok(dead));
    }

    #[test]
    fn a_cursor_of_another_query_is_refused() {
        let one = NotificationFilter { producer: Some("a".into()), ..NotificationFilter::default() };
        let other =
            NotificationFilter { notification_type: Some("a".into()), ..NotificationFilter::default() };
        let cursor = place().to_cursor(&one);
        assert_eq!(RecordCursor::from_cursor(&cursor, &other), Err(InvalidCursor));
        assert_eq!(RecordCursor::from_cursor(&cursor, &NotificationFilter::default()), Err(InvalidCursor));
        let list = MalformedFilter { producer: Some("a".into()), ..MalformedFilter::default() };
        assert_eq!(MalformedPlace::from_cursor(&cursor, &list), Err(InvalidCursor));
    }

    #[test]
    fn what_no_list_gave_out_is_refused() {
        let filter = NotificationFilter::default();
        let of = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let digest = digest(&filter);
        for cursor in [
            String::new(),
            "x".repeat(MAX_CURSOR + 4),
            "§".to_owned(),
            of("{}"),
            of(&format!(r#"[2,"{digest}",0,["1-0"]]"#)),
            of(&format!(r#"[1,"{digest}",0,[]]"#)),
            of(&format!(r#"[1,"{digest}",0,["1-0","x"]]"#)),
            of(&format!(r#"[1,"{digest}",9223372036854775807,["1-0"]]"#)),
            of(&format!(r#"[1,"{digest}",0,[7]]"#)),
        ] {
            assert_eq!(RecordCursor::from_cursor(&cursor, &filter), Err(InvalidCursor), "{cursor:.40}");
        }
    }
}
