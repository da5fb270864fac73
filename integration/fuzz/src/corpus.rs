//! The files of a target: its corpus, its dictionary, and the inputs that broke a property.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Target;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
/// The folder in which inputs that broke a property are kept, below the folder of builds.
const FINDINGS: &str = "fuzz-findings";
/// The number of digits of the hash that names such an input.
const NAME_DIGITS: usize = 16;

/// Reads the corpus in the order of its file names. Panics if there is none.
pub fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(FOLDER).join("corpus").join(target.name);
    let read = |path: &Path| {
        fs::read(path).unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()))
    };
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| read(path)).collect()
}

/// Reads the dictionary, whose lines are those of libFuzzer: `"text"`, with `\xNN`, `\"` and `\\`.
pub fn tokens(target: &Target) -> Vec<Vec<u8>> {
    let path = Path::new(FOLDER).join("dictionaries").join(target.name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let token = |line: &str| unescaped(line).unwrap_or_else(|| panic!("{}: {line}", path.display()));
    lines.map(token).collect()
}

fn unescaped(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix('"')?.strip_suffix('"')?.bytes();
    let mut token = Vec::new();
    while let Some(byte) = rest.next() {
        token.push(match byte {
            b'\\' => match rest.next()? {
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            },
            other => other,
        });
    }
    (!token.is_empty()).then_some(token)
}

/// Keeps an input that broke a property, and returns its path.
pub(crate) fn keep(target: &Target, input: &[u8]) -> PathBuf {
    let builds = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let builds = builds.unwrap_or_else(|| Path::new(FOLDER).join("../../target"));
    let folder = builds.join(FINDINGS).join(target.name);
    let path = folder.join(&hex::encode(Sha256::digest(input))[..NAME_DIGITS]);
    let kept = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, input));
    if let Err(error) = kept {
        eprintln!("the input cannot be kept: {error}");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_libfuzzer_reads_it() {
        assert_eq!(unescaped(r#""a\\b\"c\xff""#), Some(b"a\\b\"c\xff".to_vec()));
        for wrong in ["a", "\"\"", r#""a\x1""#, r#""a\xzz""#] {
            assert_eq!(unescaped(wrong), None, "{wrong}");
        }
    }
}
