-- Appends lost entries again, unless an earlier call did or a publisher holds the lease. The marker of an
-- entry that the lost one replaced does not count.
-- KEYS: the stream, its server changes, their old name, then the lease of each entry; then, if they are used,
-- the old names of the leases; then the hashes of the markers.
-- ARGV: lengths of runs, TTL of a marker in ms, length to keep or 0, the number of entries, then for each
-- entry the id of the one that it replaced, or empty, then for each entry the number of its names and values,
-- and these.
-- Returns run id and replication id of this server, then for each entry: its id, appended now or before on
-- this server; 0 if a publisher holds the lease; {error} if the stream rejected it.
-- MODEL-16
local stream, ttl, max_len, n = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local has_old = first_hash > n + 3
local run_id, replication_id = server()
local noted, is_new = server_changes(stream, KEYS[2], KEYS[3], run_id, replication_id)
local answers, at, first = {run_id, replication_id}, n + 5, nil
local permitted, hash = permitted_ids(4), hashes()
-- The value of a lease, and its entry id if it is a marker that counts.
local function look(key, replaced)
  local held = redis.pcall('GET', key)
  local published = published_entry_id(held)
  if published == replaced then return nil, nil end
  return held, published
end
for i = 1, n do
  local count, old, replaced = tonumber(ARGV[at]), has_old and KEYS[n + i + 3], ARGV[i + 4]
  local own, id = KEYS[i + 3], permitted[i]
  local lease = own
  -- A marker moves from its hash to the name of the lease.
  if id and redis.call('SET', lease, marker(id), 'NX', 'PX', ttl) then
    redis.call('HDEL', hash[i], lease)
  end
  local held, published = look(lease, replaced)
  if not held and old then
    held, published = look(old, replaced)
    if held then lease = old end
  end
  -- An id that is too large is an error: no such entry exists.
  local entry = published and redis.pcall('XRANGE', stream, published, published)[1]
  if entry and entry[2][2] == ARGV[at + 2] then
    -- Its id may be recorded much later: another transaction holds the row.
    redis.call('PEXPIRE', lease, ttl)
    answers[i + 2] = published
  elseif published and not entry and is_of_this_server(noted, stream, published) then
    -- A consumer deleted or trimmed it.
    redis.call('PEXPIRE', lease, ttl)
    answers[i + 2] = published
  elseif held and not published then
    if redis.call('PTTL', lease) == -1 then redis.call('PEXPIRE', lease, ttl) end
    answers[i + 2] = 0
  else
    local id = add_entry(stream, max_len, at + 1, at + count)
    if type(id) == 'table' then
      answers[i + 2] = {id.err}
    else
      redis.call('SET', own, marker(id), 'PX', ttl)
      if old then redis.call('SET', old, marker(id), 'PX', ttl) end
      answers[i + 2], first = id, first or id
    end
  end
  at = at + count + 1
end
note_changes(KEYS[2], noted, is_new, first)
return answers
