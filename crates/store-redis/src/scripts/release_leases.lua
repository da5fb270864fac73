-- Deletes the leases that hold the token.
-- KEYS: leases, and their old names if they are used. ARGV: token.
for _, key in ipairs(KEYS) do
  if redis.pcall('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return redis.status_reply('OK')
