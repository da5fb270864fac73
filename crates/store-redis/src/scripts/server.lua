-- Prepended to the scripts that return the identity of the server that acknowledges.

-- The run id, which changes with each start of the server; the replication id, which changes with each
-- promotion; and the role.
local function server()
  local info = redis.call('INFO', 'server', 'replication')
  return string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)'), string.match(info, 'role:(%a+)')
end
