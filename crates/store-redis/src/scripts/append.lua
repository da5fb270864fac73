-- Appends entries whose leases are held, and turns each lease into a marker.
-- KEYS: the stream, its server changes, then the lease of each entry.
-- ARGV: token, TTL of a marker in ms, length to keep or 0, then for each entry the number of its names and
-- values, and these.
-- Returns run id and replication id of this server, then for each entry: its id, appended now or before; 0 if
-- the lease is lost; {error} if the stream rejected it.
local stream, token, ttl, max_len = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local run_id, replication_id = server()
local noted, is_new = server_changes(stream, KEYS[2], run_id, replication_id)
local answers, at, first = {run_id, replication_id}, 4, nil
for i = 3, #KEYS do
  local n = tonumber(ARGV[at])
  local held = redis.pcall('GET', KEYS[i])
  if held == token then
    local id = add_entry(stream, max_len, at + 1, at + n)
    if type(id) == 'table' then
      answers[i] = {id.err}
    else
      redis.pcall('SET', KEYS[i], marker(id), 'PX', ttl)
      answers[i], first = id, first or id
    end
  else
    answers[i] = published_entry_id(held) or 0
  end
  at = at + n + 1
end
note_changes(KEYS[2], noted, is_new, first)
return answers
