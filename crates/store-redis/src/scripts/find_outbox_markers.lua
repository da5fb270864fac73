-- KEYS: markers, then, if they are used, their old names. ARGV: the number of markers.
-- Returns for each whether it exists.
local found, n = {}, tonumber(ARGV[1])
for i = 1, n do
  found[i] = redis.call('EXISTS', KEYS[i])
  if found[i] == 0 and KEYS[n + i] then found[i] = redis.call('EXISTS', KEYS[n + i]) end
end
return found
