//! The fate of a batch, from the transaction that writes it to the loop that feeds it.

/// The fate of a batch. A store returns the first four; the workers that feed it add the others.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The whole batch is committed.
    Committed,
    /// Nothing is written: a key or an id was taken since the batch was decided. Decide it again.
    WriteConflict,
    /// Nothing is written: the durable checkpoint is not the expected one. Another replica moved it, with a
    /// higher fence or not, or PostgreSQL was restored to an older state. Only a batch that moves the
    /// checkpoint has this fate.
    CheckpointMoved,
    /// Nothing is written: the condition of a stored response does not hold. A claim expired, or a key is no
    /// longer free. Only a batch with stored responses has this fate.
    KeyTaken,
    /// Nothing is written, because of at least one of several elements: try them in two parts.
    Divided,
    /// Nothing is written: the only element must wait, for this cause.
    Waiting(String),
}
