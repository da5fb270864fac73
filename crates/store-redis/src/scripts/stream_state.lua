-- Prepended to the scripts that report on whole streams.

-- The first id of a stream or an empty string, its last generated id and its highest deleted id, which Redis reports from
-- 7.0 on; false if the key does not exist. A key of another type is an error.
local function state(key)
  if redis.call('EXISTS', key) == 0 then return false end
  local info = redis.call('XINFO', 'STREAM', key)
  local of = {}
  for i = 1, #info, 2 do of[info[i]] = info[i + 1] end
  local first = of['first-entry']
  return {first and first[1] or '', of['last-generated-id'], of['max-deleted-entry-id'] or '0-0'}
end
