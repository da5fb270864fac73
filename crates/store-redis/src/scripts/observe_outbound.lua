-- KEYS: streams. Returns what INFO reports on the server and on replication, then the state of each stream.
local answer = {redis.call('INFO', 'server'), redis.call('INFO', 'replication')}
for i, key in ipairs(KEYS) do answer[i + 2] = outbound_state(key) end
return answer
