-- Appends entries whose leases are held, and turns each lease into a receipt.
-- KEYS: the stream, then the lease of each entry.
-- ARGV: token, TTL of a receipt in ms, length to keep or 0, then for each entry the number of its names and values, and
-- these.
-- Returns for each entry: its id, appended now or before; 0 if the lease is lost; {error} if the stream refused it.
local stream, token, ttl, max_len = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local answers, at = {}, 4
for i = 2, #KEYS do
  local n = tonumber(ARGV[at])
  local held = redis.pcall('GET', KEYS[i])
  if held == token then
    local id = add_entry(stream, max_len, at + 1, at + n)
    if type(id) == 'table' then
      answers[i - 1] = {id.err}
    else
      redis.pcall('SET', KEYS[i], receipt(id), 'PX', ttl)
      answers[i - 1] = id
    end
  else
    answers[i - 1] = published_entry_id(held) or 0
  end
  at = at + n + 1
end
return answers
