-- Appends entries whose leases are held, and turns each lease into a marker.
-- KEYS: the stream, its server changes, then the lease of each entry; then, if they are used, the old names of
-- these keys without the stream.
-- ARGV: token, TTL of a marker in ms, length to keep or 0, the number of entries, then for each entry the
-- number of its names and values, and these.
-- Returns run id and replication id of this server, then for each entry: its id, appended now or before; 0 if
-- the lease is lost; {error} if the stream rejected it.
-- MODEL-14
local stream, token, ttl, max_len, n = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local run_id, replication_id = server()
local noted, is_new = server_changes(stream, KEYS[2], KEYS[n + 3], run_id, replication_id)
local answers, at, first = {run_id, replication_id}, 5, nil
for i = 3, n + 2 do
  local count, old = tonumber(ARGV[at]), KEYS[n + i + 1]
  local held = redis.pcall('GET', KEYS[i])
  if held == token then
    local id = add_entry(stream, max_len, at + 1, at + count)
    if type(id) == 'table' then
      answers[i] = {id.err}
    else
      redis.pcall('SET', KEYS[i], marker(id), 'PX', ttl)
      if old then redis.pcall('SET', old, marker(id), 'PX', ttl) end
      answers[i], first = id, first or id
    end
  else
    answers[i] = published_entry_id(held) or (old and published_entry_id(redis.pcall('GET', old))) or 0
  end
  at = at + count + 1
end
note_changes(KEYS[2], noted, is_new, first)
return answers
