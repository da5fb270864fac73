-- Appends lost entries again, unless a call before this one did or a publisher holds the lease.
-- KEYS: the stream, then the lease of each entry.
-- ARGV: TTL of a receipt in ms, length to keep or 0, then for each entry the number of its names and values, and these.
-- Returns for each entry: its id, appended now or by a call before; 0 if a publisher holds the lease; {error} if the stream
-- refused it.
local stream, ttl, max_len = KEYS[1], ARGV[1], ARGV[2]
local answers, at = {}, 3
for i = 2, #KEYS do
  local n = tonumber(ARGV[at])
  local held = redis.pcall('GET', KEYS[i])
  local published = published_entry_id(held)
  -- An id that is too large is refused: there is no such entry.
  local entry = published and redis.pcall('XRANGE', stream, published, published)[1]
  if entry and entry[2][2] == ARGV[at + 2] then
    -- Its id may not be written down before long: another transaction holds the row.
    redis.call('PEXPIRE', KEYS[i], ttl)
    answers[i - 1] = published
  elseif held and not published then
    if redis.call('PTTL', KEYS[i]) == -1 then redis.call('PEXPIRE', KEYS[i], ttl) end
    answers[i - 1] = 0
  else
    local id = add_entry(stream, max_len, at + 1, at + n)
    if type(id) == 'table' then
      answers[i - 1] = {id.err}
    else
      redis.call('SET', KEYS[i], receipt(id), 'PX', ttl)
      answers[i - 1] = id
    end
  end
  at = at + n + 1
end
return answers
