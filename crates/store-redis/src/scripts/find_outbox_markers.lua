-- KEYS: markers. Returns for each whether it exists.
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('EXISTS', key) end
return found
