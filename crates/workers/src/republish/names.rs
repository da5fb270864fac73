//! Streams that cannot be compared, because the channel's stream was renamed in the compared period: the
//! routes of the channel do not show in which stream their entries are (ADR 0045).

use ambient::{Clock, Timestamp};
use domain::ports::{Election, OutboundInspection, RepublishStore, SavedStream, StoreError};
use domain::route::Channel;

use super::compare::ACCEPTED_EARLIER;
use super::watch::saved_stream;
use super::{Observed, Republisher, Suspect, TOUCH_INTERVAL};

/// A stream that is not compared, because its channel was published to another stream as well.
pub(super) struct Renamed {
    channel: Channel,
    /// The stream that may have lost entries.
    pub(super) stream: String,
    other: String,
    accepted_since: Timestamp,
}

impl<E, S, O, C> Republisher<E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    /// Divides the streams into those to compare and those whose channel was published to another stream as
    /// well.
    pub(super) async fn divide_by_names(
        &self,
        suspects: &[Suspect],
    ) -> Result<(Vec<Suspect>, Vec<Renamed>), StoreError> {
        if suspects.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let accepted_since = self.accepted_since(suspects);
        let names = self.store.list_outbound_names(accepted_since - TOUCH_INTERVAL * 2).await?;
        let (mut comparable, mut renamed) = (Vec::new(), Vec::new());
        for suspect in suspects {
            let (channel, stream) = (suspect.now.channel, suspect.now.seen.stream.clone());
            match names.iter().find(|(of, name)| *of == channel && *name != stream) {
                Some((_, other)) => {
                    renamed.push(Renamed { channel, stream, other: other.clone(), accepted_since });
                }
                None => comparable.push(suspect.clone()),
            }
        }
        Ok((comparable, renamed))
    }

    /// Returns the new streams whose channel was published to another stream before, if that stream was saved
    /// on another server: it may have lost entries while the channel was renamed. A stream is new if it was
    /// never saved.
    pub(super) async fn renamed_during_a_change(
        &self,
        seen: &[Observed],
        saved: &[SavedStream],
    ) -> Result<Vec<Renamed>, StoreError> {
        let new: Vec<&Observed> =
            seen.iter().filter(|now| saved_stream(saved, &now.seen).is_none()).collect();
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let accepted_since = self.clock.now() - self.settings.window - ACCEPTED_EARLIER;
        let names = self.store.list_outbound_names(accepted_since).await?;
        let former: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        let former = self.store.load_outbound_streams(&former).await?;
        let mut renamed = Vec::new();
        for Observed { channel, seen: now, .. } in new {
            let has_changed = |name: &str| {
                former.iter().any(|former| former.seen.stream == name && former.seen.server != now.server)
            };
            let of_channel =
                |(of, name): &&(Channel, String)| of == channel && *name != now.stream && has_changed(name);
            renamed.extend(names.iter().filter(of_channel).map(|(_, other)| Renamed {
                channel: *channel,
                stream: now.stream.clone(),
                other: other.clone(),
                accepted_since,
            }));
        }
        Ok(renamed)
    }
}

/// Logs that the stream was not compared.
pub(super) fn report_renamed(renamed: &Renamed) {
    let Renamed { channel, stream, other, accepted_since } = renamed;
    tracing::error!(channel = channel.as_str(), stream, other_stream = other, %accepted_since,
        "the outbound stream is not compared, because routes of the channel were published to another stream in the \
         same time; `notification audit` names entries that Redis lost, once the stream exists");
}
