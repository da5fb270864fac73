-- KEYS: a stream. ARGV: the highest id, the most entries, the name of a field.
-- Returns the id of the last entry that was read or an empty string, and the values of the field, from the newest entry down.
if redis.call('TYPE', KEYS[1]).ok ~= 'stream' then return {''} end
local answer = {''}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  answer[1] = entry[1]
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == ARGV[3] then
      answer[#answer + 1] = string.sub(fields[i + 1], 1, 64)
      break
    end
  end
end
return answer
