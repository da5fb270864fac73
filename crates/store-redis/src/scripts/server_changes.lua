-- Prepended, after server.lua, stream_state.lua, MAX_CHANGES and MIN_CHANGE_AGE, to the scripts that use an
-- outbound stream as a whole.

-- True if entry id `a` is at most `b`. Ids have fewer digits than Lua's numbers can represent.
local function in_order(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
  a_ms, b_ms = tonumber(a_ms), tonumber(b_ms)
  return a_ms < b_ms or (a_ms == b_ms and tonumber(a_seq) <= tonumber(b_seq))
end

-- The state of an outbound stream; false if there is none. A key of another type is not a stream: each append
-- of its channel fails and reports it, and the other channel is still observed.
local function stream_or_none(stream)
  return redis.call('TYPE', stream).ok == 'stream' and state(stream)
end

-- Adds the recorded lines, without the oldest if there are too many. A line younger than MIN_CHANGE_AGE is
-- not lost: it is merged with the line before it.
local function add_older(lines, older)
  for line in string.gmatch(older, '[^\n]+') do
    local oldest = lines[#lines]
    if #lines < MAX_CHANGES then
      lines[#lines + 1] = line
    else
      local newest_ms = string.match(lines[2], '^%S+ %S+ (%d+)')
      local after, ms = string.match(line, '^%S+ (%S+) (%d+)')
      if newest_ms and ms and tonumber(newest_ms) - tonumber(ms) < MIN_CHANGE_AGE then
        lines[#lines] = string.gsub(oldest, '^(%S+) %S+', '%1 ' .. after, 1)
      end
    end
  end
end

-- The servers that a stream was on, latest first, one line each: the server, the last id that the stream had
-- generated there before a publisher of this version appended, and the first id that one appended since, or
-- `-`. Ids between these two never existed on that server. A stream that lost its key, or that ends before
-- the first id of its line, begins a new line on the same server. While nothing was appended, the line of
-- this server has the present last id, and a server on which nothing was appended leaves none. `found` is the
-- state of the stream; if it is not given, only the type of its key is checked. Lines under the old name of
-- the key, if it is given, count while the key does not exist. Returns the lines, and whether they differ
-- from those in the key.
local function server_changes(stream, key, old, run_id, replication_id, found)
  local server = run_id .. '/' .. replication_id
  local noted, is_old = redis.pcall('GET', key), false
  if not noted and old then
    noted = redis.pcall('GET', old)
    is_old = type(noted) == 'string'
  end
  if type(noted) ~= 'string' then noted = '' end
  local newest = string.match(noted, '^[^\n]*')
  local noted_server, first = string.match(newest, '^(%S+) %S+ (%d+%-%d+)$')
  if noted_server == server then
    local is_there = found
    if found == nil then is_there = redis.call('TYPE', stream).ok == 'stream' end
    if is_there and not (found and not in_order(first, found[2])) then return noted, is_old end
  end
  if found == nil then found = stream_or_none(stream) end
  local is_open = string.sub(newest, -2) == ' -'
  local lines = {server .. ' ' .. (found and found[2] or '0-0') .. ' -'}
  add_older(lines, is_open and string.sub(noted, #newest + 2) or noted)
  local text = table.concat(lines, '\n')
  return text, is_old or text ~= noted
end

-- Writes the changes if they are new, or if `first`, the first id that this call appended, is the first one
-- on this server.
local function note_changes(key, noted, is_new, first)
  local filled, count = noted, 0
  if first then filled, count = string.gsub(noted, '^(%S+ %S+) %-', '%1 ' .. first) end
  if is_new or count > 0 then redis.pcall('SET', key, filled) end
end

-- True if this server generated an entry id, so that the entry, if it is absent, existed here: the id lies
-- between the first id that was appended here and the last one that the stream generated.
local function is_of_this_server(noted, stream, id)
  local first = string.match(noted, '^%S+ %S+ (%d+%-%d+)')
  local found = first and stream_or_none(stream)
  return found and in_order(first, id) and in_order(id, found[2])
end
