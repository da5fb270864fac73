-- KEYS: a stream, its server changes, and their old name. ARGV: id and first value of each entry.
-- Returns run id and replication id of this server, the state of the stream, then for each entry 1 if it is
-- there and 0 if not. Writes nothing.
-- MODEL-17
local run_id, replication_id = server()
local stream = stream_or_none(KEYS[1])
local noted = server_changes(KEYS[1], KEYS[2], KEYS[3], run_id, replication_id, stream)
if stream then stream[5] = noted end
local answer = {run_id, replication_id, stream}
for i = 1, #ARGV, 2 do
  local entry = stream and redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  answer[#answer + 1] = entry and entry[2][2] == ARGV[i + 1] and 1 or 0
end
return answer
