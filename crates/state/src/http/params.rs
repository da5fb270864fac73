//! The query string, and percent-encoding.

use super::error::ApiError;

/// The parameters of a request, each known and given at most once.
#[derive(Debug)]
pub(super) struct Params<const N: usize>([Option<String>; N]);

impl<const N: usize> Params<N> {
    /// The values of `names`, in their order. `+` is a space, as in forms.
    pub(super) fn parse(query: Option<&str>, names: [&str; N]) -> Result<[Option<String>; N], ApiError> {
        let mut found = Self([const { None }; N]);
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(&name.replace('+', " ")).map_err(|reason| bad_query(&reason))?;
            let Some(index) = names.iter().position(|known| *known == name) else {
                return Err(ApiError::bad_request(format!("the query parameter {name:?} is not known here")));
            };
            let value = decode(&value.replace('+', " ")).map_err(|reason| bad_query(&reason))?;
            if found.0[index].replace(value).is_some() {
                return Err(ApiError::bad_request(format!("the query parameter {name:?} is repeated")));
            }
        }
        Ok(found.0)
    }
}

/// Rejects a request with parameters.
pub(super) fn none(query: Option<&str>) -> Result<(), ApiError> {
    Params::parse(query, []).map(|[]: [Option<String>; 0]| ())
}

fn bad_query(reason: &str) -> ApiError {
    ApiError::bad_request(format!("the query string cannot be read: {reason}"))
}

/// Decodes `encoded`. `Err` contains the fault.
pub(super) fn decode(encoded: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let digit = |index: usize| after.get(index).and_then(|digit| char::from(*digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err("a % is not followed by two hexadecimal digits".to_owned());
        };
        // Cannot fail: two hexadecimal digits are at most 255.
        bytes.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits"));
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes_of_utf_8_and_a_broken_one_is_an_error() {
        for (encoded, text) in
            [("", ""), ("a+b", "a+b"), ("%61%2f%2F", "a//"), ("%C3%bc", "ü"), ("%00", "\0"), ("%25", "%")]
        {
            assert_eq!(decode(encoded), Ok(text.to_owned()), "{encoded}");
        }
        for broken in ["%", "%4", "a%zz", "%+1", "%4 ", "%%41", "%ff", "%c3", "%ed%a0%80"] {
            assert!(decode(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn parameters_are_known_and_given_once() {
        let parse = |query| Params::parse(Some(query), ["a", "b"]).ok();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(Params::parse(None, ["a"]).ok(), Some([None]));
        for (query, expected) in [
            ("", [None, None]),
            ("&a=1&", [some("1"), None]),
            ("b=x+y%2B&a", [some(""), some("x y+")]),
            ("a==", [some("="), None]),
        ] {
            assert_eq!(parse(query), Some(expected), "{query}");
        }
        for wrong in ["c=1", "a=1&a=1", "a=1&%61=2", "A=1", "a=%", "%=1", "=1", "a=%ff"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
