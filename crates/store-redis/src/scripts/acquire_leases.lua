-- Acquires leases for one token. A key that already holds the token is extended; one with a value that this
-- service never writes counts as held, and gets a TTL if it has none.
-- A marker of the entry that is replaced gives way to the token.
-- KEYS: leases; then, if they are used, the old name of each lease: a lease is won under both names or none;
-- then the hashes of the markers.
-- ARGV: lengths of runs, token, TTL in ms, then for each lease the id of the entry that is replaced, or
-- empty.
-- Returns for each lease: 1 if won, 0 if held, or the entry id of its marker; after these, if there is a
-- marker, run id and replication id of this server.
-- MODEL-13
local token, ttl, n = ARGV[2], ARGV[3], #ARGV - 3
local has_old = first_hash > n
local answers, found, permitted, hash = {}, false, permitted_ids(1), hashes()
-- Returns the answer for one name; an error table if Redis cannot write.
local function acquire(key, replaced)
  local set = redis.pcall('SET', key, token, 'NX', 'PX', ttl)
  if set then return set.err and set or 1 end
  local held = redis.pcall('GET', key)
  local published = published_entry_id(held)
  if held == token then
    redis.call('PEXPIRE', key, ttl)
    return 1
  elseif published and published == replaced then
    redis.call('SET', key, token, 'PX', ttl)
    return 1
  elseif published then
    return published
  end
  if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl) end
  return 0
end
for i = 1, n do
  local key, id, replaced = KEYS[i], permitted[i], ARGV[i + 3]
  local answer = id and id ~= replaced and redis.call('EXISTS', key) == 0 and id or acquire(key, replaced)
  if answer == 1 and has_old then
    answer = acquire(KEYS[n + i], replaced)
    if answer ~= 1 then redis.call('DEL', key) end
  end
  if type(answer) == 'table' then return answer end
  if answer == 1 and id then redis.call('HDEL', hash[i], key) end
  answers[i], found = answer, found or type(answer) == 'string'
end
if found then
  answers[n + 1], answers[n + 2] = server()
end
return answers
