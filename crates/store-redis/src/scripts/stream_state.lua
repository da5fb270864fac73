-- Prepended to the scripts that report on whole streams.

-- The first id of a stream or an empty string, its last generated id, its highest deleted id, and the bytes
-- of its first and last entry, which Redis copies for this; false if the key does not exist. A key of another
-- type is an error.
local function state(key)
  if redis.call('EXISTS', key) == 0 then return false end
  local info = redis.call('XINFO', 'STREAM', key)
  local of = {}
  for i = 1, #info, 2 do of[info[i]] = info[i + 1] end
  local first, copied = of['first-entry'], 0
  for _, entry in ipairs({first or {}, of['last-entry'] or {}}) do
    for _, part in ipairs(entry[2] or {}) do copied = copied + #part end
  end
  return {first and first[1] or '', of['last-generated-id'], of['max-deleted-entry-id'] or '0-0', copied}
end
