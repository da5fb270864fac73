-- Writes markers over any values of the keys except markers of later entries, if this is the server that
-- acknowledged the entries: they are in the stream. Another server has a marker only if it has the entry, so
-- there existing markers are extended and none is written.
-- KEYS: leases; then, if they are used, their old names; then the hashes of the markers.
-- ARGV: lengths of runs, run id and replication id of that server, TTL in ms, then the entry id of each
-- lease.
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
local is_same = run_id == ARGV[2] and replication_id == ARGV[3]
local n, ttl, permitted, hash = #ARGV - 4, ARGV[4], permitted_ids(1), hashes()
for i = 1, first_hash do
  local key, id = KEYS[i], ARGV[(i - 1) % n + 5]
  local value, held = marker(id), redis.pcall('GET', key)
  -- A marker moves from its hash to the name of the lease.
  if permitted[i] and not held then
    held = marker(permitted[i])
    redis.call('SET', key, held, 'PX', ttl)
    redis.call('HDEL', hash[i], key)
  end
  local published = is_same and published_entry_id(held)
  if published and is_later(published, id) then
    -- An operator had the route sent again, and the later entry is in the stream.
  elseif is_same then
    local set = redis.pcall('SET', key, value, 'PX', ttl)
    if set.err then return set end
  elseif held == value then
    redis.call('PEXPIRE', key, ttl)
  end
end
return is_same and 1 or 0
