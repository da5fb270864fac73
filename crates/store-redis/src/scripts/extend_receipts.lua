-- Writes receipts over whatever the keys hold: the entries are in the stream.
-- KEYS: leases. ARGV: TTL in ms, then the entry id of each key.
for i, key in ipairs(KEYS) do
  local set = redis.pcall('SET', key, receipt(ARGV[i + 1]), 'PX', ARGV[1])
  if set.err then return set end
end
return redis.status_reply('OK')
