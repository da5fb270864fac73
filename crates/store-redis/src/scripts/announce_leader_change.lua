-- Leaves one notice for one waiting candidate.
-- KEYS: the list of a leadership. ARGV: TTL of the notice in ms.
redis.call('DEL', KEYS[1])
redis.call('RPUSH', KEYS[1], '1')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.status_reply('OK')
