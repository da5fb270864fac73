//! Reports lost entries once, although a comparison may be tried again and is repeated after a minute.

use domain::republish::SeenStream;

use super::Suspect;
use super::tally::Tally;
use crate::metrics::Metrics;

/// The losses that this replica has reported: the last one of each stream.
#[derive(Default)]
pub(super) struct Losses(Vec<Loss>);

/// Lost entries of one comparison.
struct Loss {
    /// The stream before the change.
    former: SeenStream,
    /// The number of lost entries in the log, and the number in the metric.
    logged: u64,
    counted: u64,
}

impl Losses {
    /// Returns the stream before the change that is compared, or whose comparison is repeated. `None` if
    /// another replica compared it first.
    pub(super) fn former<'a>(&'a self, suspect: &'a Suspect) -> Option<&'a SeenStream> {
        let of_stream = |loss: &&Loss| loss.former.stream == suspect.now.seen.stream;
        suspect.former.as_ref().or_else(|| Some(&self.0.iter().find(of_stream)?.former))
    }

    /// Logs losses that were not logged before, and counts them if the comparison `is_complete`. If it is not
    /// complete, another replica may complete it.
    pub(super) fn report(&mut self, suspect: &Suspect, tally: &Tally, is_complete: bool, metrics: &Metrics) {
        let lost = tally.lost + tally.without_stream + tally.refused;
        let former = self.former(suspect).cloned().unwrap_or_else(|| suspect.now.seen.clone());
        let at = self.0.iter().position(|loss| loss.former.stream == former.stream);
        let loss = match at {
            Some(at) => &mut self.0[at],
            None => {
                self.0.push(Loss { former: former.clone(), logged: 0, counted: 0 });
                let last = self.0.len() - 1;
                &mut self.0[last]
            }
        };
        if loss.former != former {
            *loss = Loss { former, logged: 0, counted: 0 };
        }
        if lost > loss.logged {
            loss.logged = lost;
            log(suspect, tally);
        }
        if is_complete && lost > loss.counted {
            metrics.lost_entries(suspect.now.channel, lost - loss.counted);
            loss.counted = lost;
        }
    }

    /// The number of lost entries that were counted.
    #[cfg(test)]
    pub(super) fn counted(&self) -> u64 {
        self.0.iter().map(|loss| loss.counted).sum()
    }
}

fn log(suspect: &Suspect, tally: &Tally) {
    let (channel, stream) = (suspect.now.channel.as_str(), suspect.now.seen.stream.as_str());
    if tally.without_stream > 0 {
        tracing::error!(
            channel,
            stream,
            entries = tally.without_stream,
            "the outbound stream is absent: its entries are lost, and nothing is appended again"
        );
    }
    if let Some((first, last)) = tally.lost_range {
        tracing::error!(channel, stream, entries = tally.lost, first_entry_id = %first, last_entry_id = %last,
            "Redis lost entries of the outbound stream, which begins after them now: consumers may have processed them, and \
             nothing is appended again");
    }
}
