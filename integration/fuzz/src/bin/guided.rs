//! Checks the target that `FUZZ_TARGET` names under libFuzzer, whose options are those of this program.

#![no_main]

use std::sync::LazyLock;

use fuzz::{TARGETS, Target, target};

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let names = TARGETS.map(|target| target.name).join(", ");
    target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?} and takes one of {names}"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if input.len() <= CHOSEN.max_bytes {
        (CHOSEN.check)(input);
    }
});
