-- Writes receipts over whatever the keys hold, if this is the server that acknowledged the entries: they are in the stream.
-- KEYS: leases. ARGV: run id and replication id of that server, TTL in ms, then the entry id of each key.
-- Returns 1, or 0 if this is another server; then nothing is written.
local run_id, replication_id = server()
if run_id ~= ARGV[1] or replication_id ~= ARGV[2] then return 0 end
for i, key in ipairs(KEYS) do
  local set = redis.pcall('SET', key, receipt(ARGV[i + 3]), 'PX', ARGV[3])
  if set.err then return set end
end
return 1
