//! The description of one configuration variable.

use std::fmt;
use std::time::Duration;

use super::duration;

/// One configuration variable.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// The name of the variable.
    pub name: &'static str,
    /// The heading of its section.
    pub section: &'static str,
    /// The value if the variable is not set; may be empty.
    pub default: &'static str,
    /// True if the service cannot start without the variable.
    pub required: bool,
    /// True if the value is never shown, and may be in a file that [`Knob::file_variable`] names.
    pub secret: bool,
    /// The values that the variable accepts.
    pub takes: Takes,
    /// The purpose of the variable, in a sentence for operators.
    pub what: &'static str,
}

impl Knob {
    /// The variable that may name a file with the value instead; `None` unless the value is a secret.
    pub fn file_variable(&self) -> Option<String> {
        self.secret.then(|| format!("{}_FILE", self.name))
    }
}

/// The values that a variable accepts.
#[derive(Debug, Clone, Copy)]
pub enum Takes {
    /// A Go duration within these bounds.
    Duration(Duration, Duration),
    /// A whole number within these bounds.
    Number(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A text, with a description of the syntax.
    Text(&'static str),
    /// A text that this function accepts, with a description of the syntax. Of a list, each item.
    Checked(&'static str, fn(&str) -> Result<(), String>),
}

impl Takes {
    /// Fails with the reason if a text is not accepted.
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        match self {
            Self::Checked(_, check) => check(text),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration(min, max) => {
                write!(f, "a duration from {} to {}", duration::format(*min), duration::format(*max))
            }
            Self::Number(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Text(text) | Self::Checked(text, _) => f.write_str(text),
        }
    }
}
