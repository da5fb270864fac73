//! Published markers: the value `published:<entry id>` of a lease key means that the route is in the outbound
//! stream as that entry. So does an entry id in a field named as the lease, in a hash of routes that were
//! appended without a lease, under a permit (ADR 0074).
//!
//! Markers are read and written inside scripts only. Their format is defined in `scripts/marker.lua` and
//! `scripts/route_markers.lua` alone; [`script`] makes the scripts that need it. The first argument of such a
//! script and its last keys are those of `Keyspace::route_keys`.

use redis::Script;

/// The Lua functions `marker(entry_id)` and `published_entry_id(value)`, and those of the hashes.
pub(crate) const FUNCTIONS: &str =
    concat!(include_str!("scripts/marker.lua"), include_str!("scripts/route_markers.lua"));

/// A script that calls the functions of markers.
pub(crate) fn script(body: &str) -> Script {
    Script::new(&[FUNCTIONS, body].concat())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn no_other_script_knows_the_format_of_a_marker() {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
        let mut known_by = Vec::new();
        for entry in fs::read_dir(scripts).expect("the folder of the scripts") {
            let entry = entry.expect("an entry that can be read");
            if fs::read_to_string(entry.path()).expect("a script").contains("published:") {
                known_by.push(entry.file_name());
            }
        }
        assert_eq!(known_by, ["marker.lua"]);
    }
}
