-- KEYS: a stream. ARGV: the start of the range.
-- Returns the id of the first entry in the range, without its content; nil if there is none.
local found = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 1)
return found[1] and found[1][1] or false
