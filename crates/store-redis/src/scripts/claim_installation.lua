-- KEYS: the key of an installation, and its old name except in a Cluster. ARGV: an installation id.
-- Returns the id in the key, which is that under the old name, or else the given one, if the key did not exist.
local held = redis.call('GET', KEYS[1])
if held then return held end
local old = KEYS[2] and redis.call('GET', KEYS[2])
redis.call('SET', KEYS[1], old or ARGV[1])
if old then redis.call('DEL', KEYS[2]) end
return old or ARGV[1]
