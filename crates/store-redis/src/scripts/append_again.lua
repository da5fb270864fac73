-- Appends lost entries again, unless an earlier call did or a publisher holds the lease. The marker of an
-- entry that the lost one replaced does not count.
-- KEYS: the stream, its server changes, then the lease of each entry.
-- ARGV: TTL of a marker in ms, length to keep or 0, then for each entry the id of the one that it replaced,
-- or empty, then for each entry the number of its names and values, and these.
-- Returns run id and replication id of this server, then for each entry: its id, appended now or before on
-- this server; 0 if a publisher holds the lease; {error} if the stream rejected it.
local stream, ttl, max_len = KEYS[1], ARGV[1], ARGV[2]
local run_id, replication_id = server()
local noted, is_new = server_changes(stream, KEYS[2], run_id, replication_id)
local answers, at, first = {run_id, replication_id}, #KEYS + 1, nil
for i = 3, #KEYS do
  local n = tonumber(ARGV[at])
  local held = redis.pcall('GET', KEYS[i])
  local published = published_entry_id(held)
  if published == ARGV[i] then held, published = nil, nil end
  -- An id that is too large is an error: no such entry exists.
  local entry = published and redis.pcall('XRANGE', stream, published, published)[1]
  if entry and entry[2][2] == ARGV[at + 2] then
    -- Its id may be recorded much later: another transaction holds the row.
    redis.call('PEXPIRE', KEYS[i], ttl)
    answers[i] = published
  elseif published and not entry and is_of_this_server(noted, stream, published) then
    -- A consumer deleted or trimmed it.
    redis.call('PEXPIRE', KEYS[i], ttl)
    answers[i] = published
  elseif held and not published then
    if redis.call('PTTL', KEYS[i]) == -1 then redis.call('PEXPIRE', KEYS[i], ttl) end
    answers[i] = 0
  else
    local id = add_entry(stream, max_len, at + 1, at + n)
    if type(id) == 'table' then
      answers[i] = {id.err}
    else
      redis.call('SET', KEYS[i], marker(id), 'PX', ttl)
      answers[i], first = id, first or id
    end
  end
  at = at + n + 1
end
note_changes(KEYS[2], noted, is_new, first)
return answers
