//! The bookmark: how far the intents stream has been read, and under which fence.
//!
//! A hint: PostgreSQL keeps the progress of its own and has the last word. All the same no older fence may write here, and
//! under one fence the bookmark only advances; one script decides, so that a leader that was deposed cannot slip in
//! between a read and a write.

use domain::entry::EntryId;
use domain::ports::{Bookmark, FENCE_MAX, OffsetStore, Progress, StoreError, Swap};
use redis::{Script, Value};

use crate::connect::{RedisClient, ScriptCall, unexpected};
use crate::keyspace::stream_offset;

/// ARGV: milliseconds, sequence, fence, the value to write, 1 if it must advance, the highest fence. Ids have up to 20
/// digits, which Lua's numbers cannot hold: they are compared as digits. An id beyond 64 bits and a fence above the highest
/// are as garbled for `decode` below as they must be here, or they would stay for ever: no term is above such a fence.
const SAVE: &str = r"
local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function digits(text) return (string.gsub(text, '^0+(%d)', '%1')) end
local function fits(text) return not older('18446744073709551615', text) end
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'string' then
  if stored == ARGV[4] then return 1 end
  local ms, seq, rest = string.match(stored, '^(%d+)%-(%d+)(.*)$')
  local fence = ms and (rest == '' and '0' or string.match(rest, '^@(%d+)$'))
  if fence then
    ms, seq, fence = digits(ms), digits(seq), digits(fence)
    local readable = fits(ms) and fits(seq) and not older(ARGV[6], fence)
    if readable and older(ARGV[3], fence) then return 0 end
    if readable and ARGV[5] == '1' and fence == ARGV[3] then
      local advances = older(ms, ARGV[1]) or (ms == ARGV[1] and older(seq, ARGV[2]))
      if not advances then return 0 end
    end
  end
end
redis.call('SET', KEYS[1], ARGV[4])
return 1";

/// The bookmarks of streams.
#[derive(Clone, Debug)]
pub struct RedisOffsets {
    client: RedisClient,
    save: Script,
}

impl RedisOffsets {
    /// Bookmarks on the shared connection of `client`.
    pub fn new(client: &RedisClient) -> Self {
        Self { client: client.clone(), save: Script::new(SAVE) }
    }

    async fn write(
        &self,
        operation: &'static str,
        stream: &str,
        progress: Progress,
        must_advance: bool,
    ) -> Result<Swap, StoreError> {
        let id = progress.last_entry_id;
        let mut call = ScriptCall::new(&self.save, [stream_offset(stream)].iter());
        call.arg(id.millis)
            .arg(id.sequence)
            .arg(progress.fence)
            .arg(encode(progress))
            .arg(u8::from(must_advance))
            .arg(FENCE_MAX);
        match self.client.script(operation, &call).await? {
            Value::Int(1) => Ok(Swap::Applied),
            Value::Int(_) => Ok(Swap::Conflict),
            other => Err(unexpected(operation, &other)),
        }
    }
}

impl OffsetStore for RedisOffsets {
    async fn load(&self, stream: &str) -> Result<Bookmark, StoreError> {
        const OPERATION: &str = "load the stream offset";
        let command = redis::cmd("GET").arg(stream_offset(stream)).to_owned();
        match self.client.command(OPERATION, &command).await {
            Ok(Value::Nil) => Ok(Bookmark::Missing),
            Ok(Value::BulkString(bytes)) => Ok(decode(&String::from_utf8_lossy(&bytes))),
            Ok(other) => Err(unexpected(OPERATION, &other)),
            // A key of another type is as garbled as a string that is no offset.
            Err(StoreError::Refused { source, .. }) => Ok(Bookmark::Garbled(source.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn save(&self, stream: &str, progress: Progress) -> Result<Swap, StoreError> {
        self.write("save the stream offset", stream, progress, true).await
    }

    async fn reset(&self, stream: &str, progress: Progress) -> Result<Swap, StoreError> {
        self.write("reset the stream offset", stream, progress, false).await
    }
}

/// `<id>`, or `<id>@<fence>` with the fence's 15 digits where one is elected.
fn encode(progress: Progress) -> String {
    match progress.fence {
        0 => progress.last_entry_id.to_string(),
        fence => format!("{}@{fence:015}", progress.last_entry_id),
    }
}

fn decode(text: &str) -> Bookmark {
    let (id, fence) = text.split_once('@').unwrap_or((text, "0"));
    let id = id.parse::<EntryId>().ok();
    let fence = fence.bytes().all(|b| b.is_ascii_digit()).then(|| fence.parse().ok()).flatten();
    let fence = fence.filter(|&fence| fence <= FENCE_MAX);
    match (id, fence) {
        (Some(last_entry_id), Some(fence)) => Bookmark::At(Progress { fence, last_entry_id }),
        _ => Bookmark::Garbled(text.chars().take(64).collect()),
    }
}
