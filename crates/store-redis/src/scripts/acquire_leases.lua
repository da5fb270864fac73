-- Acquires leases for one token. A key that already holds the token is extended; one with a value that this
-- service never writes counts as held, and gets a TTL if it has none.
-- A marker of the entry that is replaced gives way to the token.
-- KEYS: leases. ARGV: token, TTL in ms, then for each key the id of the entry that is replaced, or empty.
-- Returns for each key: 1 if won, 0 if held, or the entry id of its marker; after these, if there is a
-- marker, run id and replication id of this server.
local token, ttl = ARGV[1], ARGV[2]
local answers, found = {}, false
for i, key in ipairs(KEYS) do
  local set = redis.pcall('SET', key, token, 'NX', 'PX', ttl)
  if set then
    if set.err then return set end
    answers[i] = 1
  else
    local held = redis.pcall('GET', key)
    local published = published_entry_id(held)
    if held == token then
      redis.call('PEXPIRE', key, ttl)
      answers[i] = 1
    elseif published and published == ARGV[i + 2] then
      redis.call('SET', key, token, 'PX', ttl)
      answers[i] = 1
    elseif published then
      answers[i], found = published, true
    else
      if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl) end
      answers[i] = 0
    end
  end
end
if found then
  answers[#KEYS + 1], answers[#KEYS + 2] = server()
end
return answers
