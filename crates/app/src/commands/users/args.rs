//! The command line of `users`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use crate::commands::operators::parse_text;

/// A subcommand for the users of the user directory.
#[derive(Subcommand, Debug)]
pub enum UsersCommand {
    /// Store the users of a file, in place of what is known of them
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Store one user, in place of what is known of them
    #[command(after_help = ADD_EXAMPLES)]
    Add(AddArgs),
    /// Show one user
    #[command(after_help = GET_EXAMPLES)]
    Get(UserArgs),
    /// List the ids of users, ascending by their bytes
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Delete one user
    #[command(after_help = DELETE_EXAMPLES)]
    Delete(UserArgs),
}

/// How to print.
#[derive(Args, Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The file to import.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// A file that ends with .jsonl (an object in each line) or .csv (with a header)
    pub file: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

/// The user to store.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("user").required(true))]
pub struct AddArgs {
    /// The id of the user
    #[arg(group = "user", value_parser = parse_text)]
    pub user_id: Option<String>,
    /// The address for e-mails
    #[arg(long, requires = "user_id", value_parser = parse_text)]
    pub email: Option<String>,
    /// The language, such as en
    #[arg(long, value_name = "LANGUAGE", requires = "user_id", value_parser = parse_text)]
    pub preferred_language: Option<String>,
    /// The whole user as a JSON object, like a line of a file for `users import`
    #[arg(long, value_name = "JSON", group = "user")]
    pub document: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

/// The user.
#[derive(Args, Debug)]
pub struct UserArgs {
    /// The id of the user
    #[arg(value_parser = parse_text)]
    pub user_id: String,
    #[command(flatten)]
    pub output: Output,
}

/// The users to list.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only ids that begin like this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// The most ids [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub output: Output,
}

/// The examples of `users`.
pub const EXAMPLES: &str = "\
Examples:
  notification users import users.jsonl
  notification users add u-1 --email ada@example.com --preferred-language en
  notification users get u-1
  notification users list --prefix u-
  notification users delete u-1

They are for NOTIFICATION_USER_DIRECTORY=state, and need NOTIFICATION_POSTGRES_PRIMARY_DSN alone.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  notification users import users.jsonl      a line: {\"user_id\":\"u-1\",\"email\":\"ada@example.com\",\"preferred_language\":\"en\"}
  notification users import users.csv        the first line: user_id,email,preferred_language
  notification users import users.csv --json

A user that is known already is replaced; users that are not in the file stay. Further members and columns are stored too.
Ctrl-C ends it after the batch in progress and says how many are stored. Records that cannot be taken are written to FILE.refused.jsonl with line, reason and text; the others are imported, and the
exit code is 1. It applies the migrations first, and may be run again at any time.";

const ADD_EXAMPLES: &str = "\
Examples:
  notification users add u-1 --email ada@example.com --preferred-language en
  notification users add u-1                 a user without an address: only push events reach them
  notification users add --document '{\"user_id\":\"u-1\",\"email\":\"ada@example.com\",\"plan\":\"gold\"}'

The rules are those of `users import`: a user that is known already is replaced, further members are stored too, and the migrations are
applied first. The exit code is 2 if the user cannot be taken.";

const GET_EXAMPLES: &str = "\
Examples:
  notification users get u-1
  notification users get u-1 --json | jq .document.email

The exit code is 1 if there is no such user.";

const LIST_EXAMPLES: &str = "\
Examples:
  notification users list --limit 20
  notification users list --prefix u- --json | jq -r .user_id

The exit code is 1 if there is no such user.";

const DELETE_EXAMPLES: &str = "\
Example:
  notification users delete u-1

An intent to this user is then malformed (recipient_not_found). The exit code is 1 if there is no such user.";
