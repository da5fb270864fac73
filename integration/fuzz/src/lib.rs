//! Hostile input for every parser of outside input, and the properties that hold whatever the input is.
//!
//! A [`Target`] is a parser and its properties, a function of bytes that panics if one is broken. [`run`]
//! checks it with its corpus, then with mutations of the corpus for a time: the tests of this crate. The
//! program `guided` checks it under libFuzzer, which keeps the mutations that reach new code: `make fuzz`.
//! Both share the corpus and the dictionary of a target, so what one finds the other checks.
//!
//! A finding becomes a test with a name next to its parser; its input stays in the corpus.

pub mod corpus;
mod mutation;
mod run;
mod targets;
mod text;

pub use run::run;
pub use targets::TARGETS;

/// A parser of outside input, with its properties.
#[derive(Debug)]
pub struct Target {
    /// The name, which is also that of the folder of its corpus.
    pub name: &'static str,
    /// The longest input, in bytes.
    pub max_bytes: usize,
    /// Checks the properties with this input. Panics if one does not hold.
    pub check: fn(&[u8]),
}

/// The target of this name, if there is one.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
