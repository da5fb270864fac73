//! RFC 7396.

use std::collections::BTreeMap;

use super::Json;

/// Merges `patch` into `target` by RFC 7396: members that are `null` are removed, objects are merged,
/// everything else is replaced. The result nests no deeper than the deeper of the two.
pub fn merge(target: Json, patch: Json) -> Json {
    let Json::Object(changes) = patch else { return patch };
    let mut members = match target {
        Json::Object(members) => members,
        _ => BTreeMap::new(),
    };
    for (name, change) in changes {
        match change {
            Json::Null => {
                members.remove(&name);
            }
            change => {
                let old = members.remove(&name).unwrap_or(Json::Null);
                members.insert(name, merge(old, change));
            }
        }
    }
    Json::Object(members)
}
