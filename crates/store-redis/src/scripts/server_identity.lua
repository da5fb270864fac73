-- Prepended to the scripts that must identify the server that runs them.

-- The run id and the id of the replication history, which change with each start and each failover.
local function server_identity()
  local replication = redis.call('INFO', 'replication')
  return string.match(redis.call('INFO', 'server'), 'run_id:([^\r\n]*)')
    .. '/' .. string.match(replication, 'master_replid:([^\r\n]*)'),
    string.match(replication, 'role:([^\r\n]*)') == 'master'
end
