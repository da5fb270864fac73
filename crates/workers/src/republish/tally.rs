//! The findings of a comparison in each stream, and the log lines about them.

use domain::entry::EntryId;

use super::Suspect;

/// The findings of a comparison in one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) present: u64,
    pub(super) trimmed: u64,
    pub(super) deleted: u64,
    pub(super) without_stream: u64,
    /// The number of entries that the stream lost before its current first entry, and the lowest and highest
    /// of their ids.
    pub(super) lost: u64,
    pub(super) lost_range: Option<(EntryId, EntryId)>,
    /// Entries that had already been lost and reported before the change.
    pub(super) lost_before: u64,
    /// Lost entries that cannot be encoded, or that the stream refused.
    pub(super) refused: u64,
    /// Routes that a publisher or another transaction held. The comparison begins again because of them.
    pub(super) held: u64,
    /// The number of entries that were appended again, and how many of them are logged.
    republished: u64,
    logged: u64,
    /// The lowest and the highest id among those that are not logged.
    range: Option<(EntryId, EntryId)>,
}

pub(super) fn widen(range: &mut Option<(EntryId, EntryId)>, id: EntryId) {
    let (first, last) = range.unwrap_or((id, id));
    *range = Some((first.min(id), last.max(id)));
}

impl Tally {
    /// Counts an entry that was appended again, by its old id.
    pub(super) fn republished(&mut self, lost: EntryId) {
        self.republished += 1;
        widen(&mut self.range, lost);
    }

    /// Removes the findings of a page that is compared again. Appended entries stay counted: the page then
    /// finds them in the stream.
    pub(super) fn forget_page(&mut self, before: &Self) {
        let Self { republished, logged, range, .. } = *self;
        *self = Self { republished, logged, range, ..*before };
    }
}

/// Logs the result for each stream. Unless it `is_whole`, the comparison ended before the oldest record and
/// continues later.
pub(super) fn report(streams: &mut [(Suspect, Tally)], is_whole: bool) {
    for (Suspect { now, .. }, tally) in streams {
        let (channel, stream) = (now.channel.as_str(), now.seen.stream.as_str());
        if let Some((first, last)) = tally.range.take() {
            let entries = tally.republished - std::mem::replace(&mut tally.logged, tally.republished);
            tracing::warn!(channel, stream, entries, first_entry_id = %first, last_entry_id = %last,
                "entries that Redis had lost were appended again");
        }
        tracing::info!(
            channel,
            stream,
            present = tally.present,
            trimmed = tally.trimmed,
            deleted = tally.deleted,
            republished = tally.republished,
            lost = tally.lost + tally.without_stream,
            lost_before = tally.lost_before,
            held = tally.held,
            whole = is_whole,
            "the stream was compared with the published routes"
        );
    }
}
