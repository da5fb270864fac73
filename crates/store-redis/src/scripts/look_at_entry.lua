-- Describes the first entry of a range that is too large to be read: lengths, and the beginnings of names and
-- values.
-- KEYS: a stream. ARGV: the start of the range, the maximum bytes of one name or value, the maximum number of
-- fields, the maximum bytes in all.
-- Returns nil if there is none; else its id, the number of its fields, their bytes, and the names and values
-- of the first fields, each as its length and its beginning.
local entry = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 1)[1]
if not entry then return false end
local fields, head, most, room = entry[2], tonumber(ARGV[2]), 2 * tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes, parts = 0, {}
for i = 1, #fields do
  bytes = bytes + #fields[i]
  if i <= most and room > 0 then
    local begins = string.sub(fields[i], 1, math.min(head, room))
    room = room - #begins
    parts[#parts + 1] = #fields[i]
    parts[#parts + 1] = begins
  end
end
return {entry[1], #fields / 2, bytes, parts}
