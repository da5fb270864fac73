-- KEYS: the key of an installation. ARGV: an installation id.
-- Returns the id in the key, which is the given one if the key did not exist.
local held = redis.call('GET', KEYS[1])
if held then return held end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
