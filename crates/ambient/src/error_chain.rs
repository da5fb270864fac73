//! Formats an error and its causes in one line, for the log.

use std::error::Error;

/// Returns the error and its causes in one line, separated by `: `. A cause is omitted if the text before it
/// already ends with it.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failure(&'static str, Option<Box<Failure>>);

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failure {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn each_cause_appears_once() {
        let cause = Failure("connection refused", None);
        let repeats = Failure("PostgreSQL: connection refused", Some(Box::new(cause)));
        let error = Failure("could not list routes", Some(Box::new(repeats)));
        assert_eq!(error_chain(&error), "could not list routes: PostgreSQL: connection refused");
    }
}
