-- KEYS: the record of an outbox. Returns the identity of this server, the value of the record or an empty
-- string, and this server's clock in Unix ms. Returns an error on a replica: its data may be rolled back.
local identity, is_master = server_identity()
if not is_master then return redis.error_reply("READONLY this is a replica: the master is elsewhere") end
local record = redis.pcall('GET', KEYS[1])
local clock = redis.call('TIME')
return {identity, type(record) == 'string' and record or '', clock[1] * 1000 + math.floor(clock[2] / 1000)}
