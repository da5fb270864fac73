//! Holds, and the results of their changes.

use domain::hold::Hold;
use schemars::JsonSchema;
use serde::Serialize;

/// The holds of operators.
#[derive(Serialize, JsonSchema)]
pub struct Holds {
    /// The oldest first.
    pub holds: Vec<Hold>,
}

/// The result of making or releasing a hold.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChangedHold {
    /// False if it was held, or not held, already.
    pub(crate) changed: bool,
    /// The hold now; `null` if there is none.
    pub(crate) hold: Option<Hold>,
}
