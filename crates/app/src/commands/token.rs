//! `token`: makes tokens for clients of the HTTP API.

use std::io::Write;

use ambient::Tokens;
use anyhow::Context;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use http_server::tokens::{Access, Consumer, Grant, new_token};

use super::Failure;

/// A subcommand of `token`.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Make a token and its entry for the tokens file
    #[command(after_help = NEW_EXAMPLES)]
    New(NewArgs),
}

/// The examples of `token`.
pub const EXAMPLES: &str = "\
Example:
  notification token new --name game-master-1 --producer game_master";

const NEW_EXAMPLES: &str = "\
Examples:
  notification token new --name game-master-1 --producer game_master      sends intents as game_master
  notification token new --name on-call --operator                        reads everything, changes dead letters
  notification token new --name mail-1 --consumer mail                    reports receipts of e-mails
  notification token new --name lobby --prefix users/ --access write      reads and writes these keys of the state store

The first line of the output is the token, which is shown only this once: give it to the client, which sends it as
`Authorization: Bearer TOKEN`. The rest is its entry: append it to the file that NOTIFICATION_API_TOKENS_FILE names,
with --prefix STATE_PROXY_TOKENS_FILE. Running processes use it within 10 s.";

/// The name of a token and what it allows.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("grant").required(true))]
pub struct NewArgs {
    /// The name of the token, by which operators know it; unique in the file
    #[arg(long)]
    name: String,
    /// It sends intents as this producer, and reads its notifications
    #[arg(long, group = "grant")]
    producer: Option<String>,
    /// It reads everything and may change things, but sends nothing
    #[arg(long, group = "grant")]
    operator: bool,
    /// It reports receipts for this consumer's stream
    #[arg(long, group = "grant")]
    consumer: Option<ConsumerArg>,
    /// It uses keys of the state store that begin like this; may be repeated
    #[arg(long = "prefix", value_name = "PREFIX", group = "grant")]
    prefixes: Vec<String>,
    /// The access to these keys; write includes read [default: read]
    #[arg(long, requires = "prefixes", conflicts_with_all = ["producer", "operator", "consumer"])]
    access: Option<AccessArg>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum ConsumerArg {
    Mail,
    Gateway,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum AccessArg {
    Read,
    Write,
}

impl NewArgs {
    fn grant(&self) -> Grant {
        if let Some(producer) = &self.producer {
            return Grant::Producer(producer.clone());
        }
        match self.consumer {
            Some(ConsumerArg::Mail) => Grant::Consumer(Consumer::Mail),
            Some(ConsumerArg::Gateway) => Grant::Consumer(Consumer::Gateway),
            None if self.operator => Grant::Operator,
            None => {
                let access = self.access.unwrap_or(AccessArg::Read);
                let access = if matches!(access, AccessArg::Write) { Access::Write } else { Access::Read };
                Grant::Prefixes(self.prefixes.clone(), access)
            }
        }
    }
}

/// Prints a token, an empty line and its entry to `out`.
pub fn run(command: &TokenCommand, random: &impl Tokens, out: &mut impl Write) -> Result<(), Failure> {
    let TokenCommand::New(args) = command;
    let new = new_token(&args.name, &args.grant(), random)
        .map_err(|reason| Failure::Usage(format!("error: the tokens file would not take it: {reason}")))?;
    write!(out, "{}\n\n{}", new.token, new.entry).context("could not write to standard output")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use ambient::SeededTokens;
    use clap::Parser;
    use http_server::tokens::{AccessTokens, Prefixes, Principal};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: TokenCommand,
    }

    fn output(arguments: &[&str]) -> Result<String, Failure> {
        let cli = Cli::try_parse_from(["token", "new"].iter().chain(arguments));
        let cli = cli.unwrap_or_else(|error| panic!("{error}"));
        let mut out = Vec::new();
        run(&cli.command, &SeededTokens::new(7), &mut out)?;
        Ok(String::from_utf8(out).expect("UTF-8"))
    }

    fn principal(arguments: &[&str]) -> Principal {
        let output = output(arguments).expect("is made");
        let (token, entry) = output.split_once("\n\n").expect("a token, an empty line, an entry");
        let tokens = AccessTokens::from_toml(entry).expect("the file takes the entry");
        tokens.authenticate(token).expect("the entry is that of the token")
    }

    #[test]
    fn the_entry_lets_its_token_in_with_what_was_asked_for() {
        let game = principal(&["--name", "a", "--producer", "game_master"]);
        assert_eq!((&*game.name, game.producer.as_deref(), game.operator), ("a", Some("game_master"), false));
        assert!(principal(&["--name", "b", "--operator"]).operator);
        assert_eq!(principal(&["--name", "c", "--consumer", "mail"]).consumer, Some(Consumer::Mail));
        let read = |prefixes: &[&str], access| {
            let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
            Some(Prefixes { prefixes, access })
        };
        let keys = principal(&["--name", "d", "--prefix", "users/", "--prefix", "x\"y", "--access", "write"]);
        assert_eq!(keys.prefixes, read(&["users/", "x\"y"], Access::Write));
        assert_eq!(principal(&["--name", "e", "--prefix", ""]).prefixes, read(&[""], Access::Read));
    }

    #[test]
    fn the_output_is_as_documented() {
        let expected = "AAAAAAAAAAAAAAAAAAAABwAAAAAAAAAAAAAAAAAAAAg\n\n[[token]]\nname = \"a\"\nsha256 = \"";
        let output = output(&["--name", "a", "--operator"]).expect("is made");
        assert!(output.starts_with(expected) && output.ends_with("\"\nrole = \"operator\"\n"), "{output}");
    }

    #[test]
    fn a_token_has_a_name_and_one_purpose() {
        for line in [
            "new --name a",
            "new --operator",
            "new --name a --operator --producer p",
            "new --name a --consumer fax",
            "new --name a --operator --access read",
            "new --name a --access read",
            "new --name a --prefix p --access all",
        ] {
            let outcome = Cli::try_parse_from(["token"].into_iter().chain(line.split(' ')));
            assert_eq!(outcome.err().map(|error| error.exit_code()), Some(2), "{line}");
        }
    }

    #[test]
    fn what_the_file_would_not_take_is_wrong_usage() {
        for arguments in [["--name", " ", "--producer", "p"], ["--name", "a", "--producer", ""]] {
            let failure = output(&arguments).expect_err("is refused");
            assert_eq!(failure.exit_code(), 2, "{failure}");
        }
    }
}
