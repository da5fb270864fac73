-- KEYS: a stream. ARGV: id and first value of each entry.
-- Returns the state of the stream, then for each entry 1 if it is there and 0 if not.
local stream = outbound_state(KEYS[1])
local answer = {stream}
for i = 1, #ARGV, 2 do
  local entry = stream and redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  answer[#answer + 1] = entry and entry[2][2] == ARGV[i + 1] and 1 or 0
end
return answer
