-- KEYS: the record of an outbox. ARGV: the server that it is about, the record.
-- Returns 1 if it was written, 0 if this is another server.
if server_identity() ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
