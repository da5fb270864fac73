//! Published markers: the value `published:<entry id>` of a lease key means that the route is in the outbound
//! stream as that entry.
//!
//! Markers are read and written inside scripts only. Their format is defined in `scripts/marker.lua` alone;
//! [`script`] makes the scripts that need it.

use redis::Script;

/// The Lua functions `marker(entry_id)` and `published_entry_id(value)`.
pub(crate) const FUNCTIONS: &str = include_str!("scripts/marker.lua");

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
