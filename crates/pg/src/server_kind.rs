//! The kind of server that `target_session_attrs` asks for.
//!
//! The driver checks whether a session may write. Whether a server is a standby is checked here: a primary
//! may be set to read-only, and a standby is never a primary.

use tokio_postgres::Client;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::config::TargetSessionAttrs;

use crate::DsnError;
use crate::open_error::OpenFailureCause;

/// The kind of server that a connection must lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    Any,
    Primary,
    Standby,
    /// A standby; any server if no host is one.
    PreferStandby,
}

impl ServerKind {
    /// The check of the driver and the kind, for a value of `target_session_attrs`.
    pub(crate) fn parse(text: &str) -> Result<(TargetSessionAttrs, Self), DsnError> {
        use TargetSessionAttrs::{Any, ReadOnly, ReadWrite};
        Ok(match text {
            "any" => (Any, Self::Any),
            "read-write" => (ReadWrite, Self::Any),
            "read-only" => (ReadOnly, Self::Any),
            "primary" => (Any, Self::Primary),
            "standby" => (Any, Self::Standby),
            "prefer-standby" => (Any, Self::PreferStandby),
            _ => {
                return Err(DsnError::Parameter(
                    "its target_session_attrs must be one of any, read-write, read-only, primary, standby, prefer-standby"
                        .to_owned(),
                ));
            }
        })
    }

    /// The value of `target_session_attrs`, unless it is the default.
    pub(crate) fn shown(self, session: TargetSessionAttrs) -> Option<String> {
        let name = match (self, session) {
            (Self::Primary, _) => "primary",
            (Self::Standby, _) => "standby",
            (Self::PreferStandby, _) => "prefer-standby",
            (Self::Any, TargetSessionAttrs::ReadWrite) => "read-write",
            (Self::Any, TargetSessionAttrs::ReadOnly) => "read-only",
            (Self::Any, _) => return None,
        };
        Some(name.to_owned())
    }

    /// The kinds that are looked for, one round over all hosts for each.
    pub(crate) fn rounds(self) -> &'static [Self] {
        match self {
            Self::Any => &[Self::Any],
            Self::Primary => &[Self::Primary],
            Self::Standby => &[Self::Standby],
            Self::PreferStandby => &[Self::Standby, Self::Any],
        }
    }

    /// Fails if the server is of another kind.
    pub(crate) async fn check(self, client: &Client) -> Result<(), OpenFailureCause> {
        if self == Self::Any {
            return Ok(());
        }
        let rows = client.simple_query("SELECT pg_catalog.pg_is_in_recovery()").await;
        let rows = rows.map_err(OpenFailureCause::driver)?;
        let is_standby = rows.iter().any(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        });
        match self {
            Self::Primary if is_standby => Err(OpenFailureCause::IsStandby),
            Self::Standby | Self::PreferStandby if !is_standby => Err(OpenFailureCause::IsPrimary),
            _ => Ok(()),
        }
    }
}
