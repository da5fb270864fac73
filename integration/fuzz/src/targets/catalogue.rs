//! Catalogue files.

use std::collections::HashSet;

use domain::catalog::{AudienceKind, Catalog, MAX_NAME};
use serde_json::json;

use crate::Target;

pub(super) const TARGET: Target = Target { name: "catalogue", max_bytes: 2 * 1024, check };

fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let catalog = match Catalog::parse(text) {
        Ok(catalog) => catalog,
        Err(error) => {
            let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
            assert!((1..=lines).contains(&error.line), "{error}: there are {lines} lines");
            let reason = &error.reason;
            assert!(!reason.is_empty() && !reason.contains('\n'), "the reason is not one line: {reason:?}");
            return;
        }
    };
    let mut names = HashSet::new();
    for known in catalog.types() {
        let name = known.name();
        assert!(names.insert(name) && (1..=MAX_NAME).contains(&name.len()), "{name}");
        assert!(catalog.get(name).is_some_and(|found| std::ptr::eq(found, known)));
        assert!(!known.producers().is_empty());
        let channels: Vec<_> =
            AudienceKind::ALL.into_iter().filter_map(|kind| known.channels(kind)).collect();
        assert!(!channels.is_empty() && channels.iter().all(|channels| !channels.is_empty()));
        assert!(
            known.admin_emails_variable().bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
        );
        if let Some(example) = known.example_payload() {
            assert!(example.is_object());
            assert_eq!(known.check_payload(&example), Ok(()), "the example breaks the schema");
        }
        for payload in [json!({}), json!({"a": "S3cretPw", "b": [1, {"c": null}]}), json!(["S3cretPw", 1.5])]
        {
            if let Err(rule) = known.check_payload(&payload) {
                assert!(
                    text.contains("S3cretPw") || !rule.contains("S3cretPw"),
                    "it repeats a value: {rule}"
                );
            }
        }
    }
    assert!(!names.is_empty(), "a catalogue without types");
}
