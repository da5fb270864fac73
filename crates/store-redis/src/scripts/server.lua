-- Prepended to the scripts that return what this server acknowledges.

-- The run id, another one after each start of the server; the replication id, another one after each promotion; and the role.
local function server()
  local info = redis.call('INFO', 'server', 'replication')
  return string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)'), string.match(info, 'role:(%a+)')
end
