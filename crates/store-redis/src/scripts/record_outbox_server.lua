-- KEYS: the record of an outbox. ARGV: the server of the record, the record that was read or an empty string,
-- the new record.
-- Returns 1 if it was written, 0 if this is another server or the record has changed.
if server_identity() ~= ARGV[1] then return 0 end
local record = redis.pcall('GET', KEYS[1])
if (type(record) == 'string' and record or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[3])
return 1
