-- Deletes entries of a stream.
-- KEYS: the stream. ARGV: the ids of the entries.
-- Returns how many of them there were.
return redis.call('XDEL', KEYS[1], unpack(ARGV))
