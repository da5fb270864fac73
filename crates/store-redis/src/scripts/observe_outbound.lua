-- KEYS: a stream, its server changes, and their old name.
-- Returns role, run id and replication id of this server, then the state of the stream.
local run_id, replication_id, role = server()
local stream = stream_or_none(KEYS[1])
local noted, is_new = server_changes(KEYS[1], KEYS[2], KEYS[3], run_id, replication_id, stream)
note_changes(KEYS[2], noted, is_new)
if stream then stream[5] = noted end
return {role, run_id, replication_id, stream}
