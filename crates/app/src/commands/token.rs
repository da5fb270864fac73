//! `token`: makes tokens for clients of the HTTP API.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use ambient::Tokens;
use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use http_server::tokens::{Access, Consumer, Grant, Role, check_tokens, new_token};
use tempfile::NamedTempFile;

use super::output::print_line;
use super::{Failure, output::printable};
use crate::config::read_bounded;

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
  notification token new --name support --role viewer                     reads everything, addresses and payloads masked
  notification token new --name auditor --role viewer --see personal      reads everything, changes nothing
  notification token new --name mail-1 --consumer mail                    reports receipts of e-mails
  notification token new --name lobby --prefix users/ --access write      reads and writes these keys of the state store
  notification token new --name on-call --operator --append /etc/notification/tokens.toml

The first line of the output is the token, which is shown only this once: give it to the client, which sends it as
`Authorization: Bearer TOKEN`. The rest is its entry for the file that NOTIFICATION_API_TOKENS_FILE names, with --prefix
STATE_PROXY_TOKENS_FILE. --append adds the entry to that file and prints the token alone. The file keeps its owner and mode; it stays as it is
if the service would refuse the result. Running processes use the token within 10 s.";

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
    /// It reads everything: viewer without addresses and payloads, operator with the right to change things
    #[arg(long, group = "grant")]
    role: Option<RoleArg>,
    /// The same as --role operator
    #[arg(long, group = "grant")]
    operator: bool,
    /// A viewer sees addresses and payloads, too
    #[arg(long, requires = "role", conflicts_with_all = ["producer", "operator", "consumer", "prefixes"])]
    see: Option<SeeArg>,
    /// It reports receipts for this consumer's stream
    #[arg(long, group = "grant")]
    consumer: Option<ConsumerArg>,
    /// It uses keys of the state store that begin like this; may be repeated
    #[arg(long = "prefix", value_name = "PREFIX", group = "grant")]
    prefixes: Vec<String>,
    /// The access to these keys; write includes read [default: read]
    #[arg(long, requires = "prefixes", conflicts_with_all = ["producer", "role", "operator", "consumer"])]
    access: Option<AccessArg>,
    /// Add the entry to this tokens file, and print the token alone
    #[arg(long, value_name = "FILE")]
    append: Option<PathBuf>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum ConsumerArg {
    Mail,
    Gateway,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum RoleArg {
    Viewer,
    Operator,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum SeeArg {
    Personal,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum AccessArg {
    Read,
    Write,
}

impl NewArgs {
    /// The granted right; `Err` if the arguments contradict each other.
    fn grant(&self) -> Result<Grant, Failure> {
        if self.see.is_some() && !matches!(self.role, Some(RoleArg::Viewer)) {
            return Err(Failure::Usage(
                "error: --see is for --role viewer: an operator sees everything".into(),
            ));
        }
        if let Some(producer) = &self.producer {
            return Ok(Grant::Producer(producer.clone()));
        }
        let role = match self.role {
            Some(RoleArg::Viewer) => Some(Role::Viewer { sees_personal: self.see.is_some() }),
            Some(RoleArg::Operator) => Some(Role::Operator),
            None => self.operator.then_some(Role::Operator),
        };
        Ok(match (self.consumer, role) {
            (Some(ConsumerArg::Mail), _) => Grant::Consumer(Consumer::Mail),
            (Some(ConsumerArg::Gateway), _) => Grant::Consumer(Consumer::Gateway),
            (None, Some(role)) => Grant::Role(role),
            (None, None) => {
                let access = self.access.unwrap_or(AccessArg::Read);
                let access = if matches!(access, AccessArg::Write) { Access::Write } else { Access::Read };
                Grant::Prefixes(self.prefixes.clone(), access)
            }
        })
    }
}

/// Prints a token to `out`, and after an empty line its entry, unless the entry is added to a file.
pub fn run(command: &TokenCommand, random: &impl Tokens, out: &mut impl Write) -> Result<(), Failure> {
    let TokenCommand::New(args) = command;
    let new = new_token(&args.name, &args.grant()?, random)
        .map_err(|reason| Failure::Usage(format!("error: the tokens file would not take it: {reason}")))?;
    let Some(path) = &args.append else {
        write!(out, "{}\n\n{}", new.token, new.entry).context("could not write to standard output")?;
        return Ok(());
    };
    append(path, &new.entry).with_context(|| {
        format!("the entry was not added, and {} is as it was", printable(&path.to_string_lossy()))
    })?;
    Ok(print_line(out, &new.token)?)
}

/// Adds an entry to a tokens file. The file is replaced as a whole, by one with the same owner and mode, and
/// only if the result is valid. A link stays a link.
fn append(path: &Path, entry: &str) -> anyhow::Result<()> {
    let path = fs::canonicalize(path).context("it cannot be found")?;
    let folder = path.parent().context("it is no file")?;
    // Two commands would otherwise both add to the same text, and the later one would win.
    let lock = File::open(folder).context("its folder cannot be opened")?;
    lock.lock().context("its folder cannot be locked")?;
    let file = File::open(&path).context("it cannot be read")?;
    let before = file.metadata().context("it cannot be read")?;
    let mut text = read_bounded(file).context("it cannot be read")?;
    if !text.is_empty() {
        text += if text.ends_with('\n') { "\n" } else { "\n\n" };
    }
    text += entry;
    check_tokens(&text).map_err(|reason| anyhow!("it would be refused: {reason}"))?;
    let mut next = NamedTempFile::new_in(folder).context("its folder cannot be written")?;
    let replace = || -> std::io::Result<()> {
        next.write_all(text.as_bytes())?;
        let after = next.as_file();
        if (after.metadata()?.uid(), after.metadata()?.gid()) != (before.uid(), before.gid()) {
            fchown(after, Some(before.uid()), Some(before.gid()))?;
        }
        after.set_permissions(before.permissions())?;
        after.sync_all()?;
        next.persist(&path)?;
        lock.sync_all()
    };
    replace().context("it cannot be replaced")
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
        assert_eq!((&*game.name, game.producer.as_deref(), game.role), ("a", Some("game_master"), None));
        for arguments in [&["--operator"][..], &["--role", "operator"]] {
            assert!(principal(&[&["--name", "b"], arguments].concat()).is_operator(), "{arguments:?}");
        }
        let viewer =
            |arguments: &[&str]| principal(&[&["--name", "v", "--role", "viewer"], arguments].concat()).role;
        assert_eq!(viewer(&[]), Some(Role::Viewer { sees_personal: false }));
        assert_eq!(viewer(&["--see", "personal"]), Some(Role::Viewer { sees_personal: true }));
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
            "new --name a --role king",
            "new --name a --role viewer --operator",
            "new --name a --role viewer --see all",
            "new --name a --operator --see personal",
            "new --name a --see personal",
            "new --name a --operator --access read",
            "new --name a --access read",
            "new --name a --prefix p --access all",
        ] {
            let outcome = Cli::try_parse_from(["token"].into_iter().chain(line.split(' ')));
            assert_eq!(outcome.err().map(|error| error.exit_code()), Some(2), "{line}");
        }
    }

    #[test]
    fn an_entry_is_appended_to_a_file_that_keeps_its_mode_and_its_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().expect("there is a place for it");
        let (path, link) = (folder.path().join("tokens.toml"), folder.path().join("link"));
        fs::write(&path, "# Tokens.").expect("is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("is its owner's");
        symlink(&path, &link).expect("is linked");
        let append =
            |name| output(&["--name", name, "--operator", "--append", link.to_str().expect("UTF-8")]);

        let token = append("a").expect("is made");
        let tokens = || AccessTokens::load(&path).expect("the service takes the file");
        assert!(tokens().authenticate(token.trim_end()).is_some_and(|found| &*found.name == "a"), "{token}");
        let text = fs::read_to_string(&path).expect("is there");
        assert!(
            text.starts_with("# Tokens.\n\n[[token]]\nname = \"a\"\n") && !text.contains(token.trim_end())
        );
        assert_eq!(fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).expect("is there").is_symlink());

        let again = append("a").expect_err("the name is taken");
        assert!(again.to_string().contains("entry 2 (a) has the name of an earlier entry"), "{again}");
        assert_eq!(fs::read_to_string(&path).expect("is there"), text);
        assert_eq!(fs::read_dir(folder.path()).expect("is there").count(), 2, "no other file is left");
        let absent = folder.path().join("absent.toml");
        let absent = output(&["--name", "b", "--operator", "--append", absent.to_str().expect("UTF-8")]);
        assert_eq!(absent.expect_err("is not there").exit_code(), 1);
    }

    #[test]
    fn what_the_file_would_not_take_is_wrong_usage() {
        for arguments in [
            &["--name", " ", "--producer", "p"][..],
            &["--name", "a", "--producer", ""],
            &["--name", "a", "--role", "operator", "--see", "personal"],
        ] {
            let failure = output(arguments).expect_err("is refused");
            assert_eq!(failure.exit_code(), 2, "{failure}");
        }
    }
}
