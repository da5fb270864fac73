-- KEYS: streams, each followed by its changes of server.
-- Returns role, run id and replication id of this server, then the state of each stream.
local run_id, replication_id, role = server()
local answer = {role, run_id, replication_id}
for i = 1, #KEYS, 2 do
  local noted, is_new = server_changes(KEYS[i], KEYS[i + 1], run_id, replication_id)
  note_changes(KEYS[i + 1], noted, is_new)
  answer[#answer + 1] = outbound_state(KEYS[i], noted)
end
return answer
