//! Ports use the values of the domain; no rule uses a port.

use std::fs;
use std::path::{Path, PathBuf};

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the crate");
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    paths.flat_map(|path| if path.is_dir() { source_files(&path) } else { vec![path] }).collect()
}

#[test]
fn no_rule_names_a_port() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let ports = source.join("ports");
    for path in source_files(&source) {
        if path.starts_with(&ports) || path == ports.with_extension("rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        assert!(!text.contains("crate::ports"), "{} names a port", path.display());
    }
}
