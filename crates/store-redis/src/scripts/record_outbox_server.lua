-- KEYS: the record of an outbox. ARGV: the server that it is about, the record that was read or an empty string, the new record.
-- Returns 1 if it was written, 0 if this is another server or the record is another one.
if server_identity() ~= ARGV[1] then return 0 end
local record = redis.pcall('GET', KEYS[1])
if (type(record) == 'string' and record or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[3])
return 1
