-- Writes markers over any values of the keys except markers of later entries, if this is the server that
-- acknowledged the entries: they are in the stream. Another server has a marker only if it has the entry, so
-- there existing markers are extended and none is written.
-- KEYS: leases, then, if they are used, their old names.
-- ARGV: run id and replication id of that server, TTL in ms, then the entry id of each lease.
-- Returns 1, or 0 if this is another server.
-- MODEL-15
local run_id, replication_id = server()
-- True if the first id is greater.
local function is_later(one, other)
  local ms, seq = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_seq = string.match(other, '^(%d+)-(%d+)$')
  if not other_ms then return false end
  ms, seq, other_ms, other_seq = tonumber(ms), tonumber(seq), tonumber(other_ms), tonumber(other_seq)
  return ms > other_ms or (ms == other_ms and seq > other_seq)
end
local is_same = run_id == ARGV[1] and replication_id == ARGV[2]
local n = #ARGV - 3
for i, key in ipairs(KEYS) do
  local id = ARGV[(i - 1) % n + 4]
  local value = marker(id)
  local held = is_same and published_entry_id(redis.pcall('GET', key))
  if held and is_later(held, id) then
    -- An operator had the route sent again, and the later entry is in the stream.
  elseif is_same then
    local set = redis.pcall('SET', key, value, 'PX', ARGV[3])
    if set.err then return set end
  elseif redis.pcall('GET', key) == value then
    redis.call('PEXPIRE', key, ARGV[3])
  end
end
return is_same and 1 or 0
