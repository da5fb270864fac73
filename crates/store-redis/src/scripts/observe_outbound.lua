-- KEYS: streams, each followed by its server changes.
-- Returns role, run id and replication id of this server, then the state of each stream.
local run_id, replication_id, role = server()
local answer = {role, run_id, replication_id}
for i = 1, #KEYS, 2 do
  local stream = stream_or_none(KEYS[i])
  local noted, is_new = server_changes(KEYS[i], KEYS[i + 1], run_id, replication_id, stream)
  note_changes(KEYS[i + 1], noted, is_new)
  if stream then stream[5] = noted end
  answer[#answer + 1] = stream
end
return answer
