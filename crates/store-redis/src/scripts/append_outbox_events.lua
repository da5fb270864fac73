-- Appends events of an outbox, each under a marker.
-- KEYS: the streams, then the marker of each event, then, if they are used, the old name of each marker.
-- ARGV: the server that the claim was made for or an empty string, the deadline of the claim by that server's
-- clock in Unix ms, TTL of a marker in ms, the number of streams, the number of events; then for each event the
-- number of its stream, the number of its order group or 0, the number of its names and values, and these.
-- Returns this server's clock in Unix ms, then for each event: its id, appended now or before; 0 if it was
-- not appended, because the claim has expired or an earlier event of its group was rejected; {error} if the
-- stream rejected it. Returns only -1 if this is another server.
if ARGV[1] ~= '' and server_identity() ~= ARGV[1] then return {-1} end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl, streams, events = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local over = now > tonumber(ARGV[2])
local answers, blocked, at = {now}, {}, 6
for i = streams + 1, streams + events do
  local stream, group, n = KEYS[tonumber(ARGV[at])], ARGV[at + 1], tonumber(ARGV[at + 2])
  local answer = 0
  if not over and not blocked[group] then
    local marker, old = KEYS[i], KEYS[events + i]
    local held = redis.pcall('GET', marker)
    if not held and old then
      marker = old
      held = redis.pcall('GET', old)
    end
    if type(held) == 'string' and string.match(held, '^%d+%-%d+$') then
      redis.call('PEXPIRE', marker, ttl)
      answer = held
    else
      local id = redis.pcall('XADD', stream, '*', unpack(ARGV, at + 3, at + 2 + n))
      if type(id) == 'table' then
        answer = {id.err}
        if group ~= '0' then blocked[group] = true end
      else
        redis.call('SET', KEYS[i], id, 'PX', ttl)
        if old then redis.call('SET', old, id, 'PX', ttl) end
        answer = id
      end
    end
  end
  answers[#answers + 1] = answer
  at = at + 3 + n
end
return answers
