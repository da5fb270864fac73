-- Prepended to the scripts that use the markers of routes that were appended under a permit. Such a marker is
-- a field of a hash, named as the lease and with the entry id as value; a hash has the routes of a short time
-- and expires as a whole. A route has its marker there or under the name of its lease, never in both.

-- The lengths of the runs of consecutive leases that belong to one hash each; the hashes are the last KEYS.
local run_lengths = {}
for length in string.gmatch(ARGV[1], '%d+') do run_lengths[#run_lengths + 1] = tonumber(length) end
local first_hash = #KEYS - #run_lengths

-- The hash of each lease, in their order.
local function hashes()
  local found = {}
  for run, length in ipairs(run_lengths) do
    for _ = 1, length do found[#found + 1] = KEYS[first_hash + run] end
  end
  return found
end

-- For each lease, of which the first one is KEYS[at], the entry id of its marker in a hash, or false.
local function permitted_ids(at)
  local ids = {}
  for run, length in ipairs(run_lengths) do
    local found = redis.pcall('HMGET', KEYS[first_hash + run], unpack(KEYS, at, at + length - 1))
    for i = 1, length do ids[#ids + 1] = not found.err and found[i] end
    at = at + length
  end
  return ids
end
