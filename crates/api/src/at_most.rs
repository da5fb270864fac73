//! Arrays of a request body, of which only a bounded number of elements is kept.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// The first `MAX` elements of an array, and the number of all its elements. The rest is not kept, because an
/// element takes many times the memory of its text.
pub(crate) struct AtMost<T, const MAX: usize> {
    pub(crate) kept: Vec<T>,
    pub(crate) count: usize,
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
            type Value = AtMost<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < MAX {
                    let Some(item) = items.next_element()? else { break };
                    kept.push(item);
                }
                let mut count = kept.len();
                while count >= MAX && items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(AtMost { kept, count })
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_beyond_the_limit_are_counted_and_not_kept() {
        for (text, kept, count) in
            [("[]", vec![], 0), ("[1,2]", vec![1, 2], 2), ("[1,2,\"x\",{}]", vec![1, 2], 4)]
        {
            let found: AtMost<u8, 2> = serde_json::from_str(text).expect(text);
            assert_eq!((found.kept, found.count), (kept, count), "{text}");
        }
        assert!(serde_json::from_str::<AtMost<u8, 2>>("[1,\"x\"]").is_err());
        assert!(serde_json::from_str::<AtMost<u8, 2>>("[1,2,]").is_err());
    }
}
