-- Prepended, after server.lua, stream_state.lua and MAX_CHANGES, to the scripts that use an outbound stream as a whole.

-- The servers that a stream was on, latest first: one line each of the server, the last id that the stream had generated there
-- before a publisher of this version appended, and the first id that one appended since, or `-`. Ids between these two never existed
-- on that server. While nothing was appended, the line of this server has the present last id, and a server on which nothing was
-- appended leaves none. Returns the lines, and whether they differ from what is noted.
local function server_changes(stream, key, run_id, replication_id)
  local server = run_id .. '/' .. replication_id
  local noted = redis.pcall('GET', key)
  if type(noted) ~= 'string' then noted = '' end
  local newest = string.match(noted, '^[^\n]*')
  local is_open = string.sub(newest, -2) == ' -'
  if not is_open and string.sub(newest, 1, #server + 1) == server .. ' ' then return noted, false end
  local found = redis.call('TYPE', stream).ok == 'stream' and state(stream)
  local lines = {server .. ' ' .. (found and found[2] or '0-0') .. ' -'}
  for line in string.gmatch(is_open and string.sub(noted, #newest + 2) or noted, '[^\n]+') do
    if #lines == MAX_CHANGES then break end
    lines[#lines + 1] = line
  end
  local text = table.concat(lines, '\n')
  return text, text ~= noted
end

-- Writes the changes if they are new, or if `first`, the first id that this call appended, is the first one on this server.
local function note_changes(key, noted, is_new, first)
  local filled, count = noted, 0
  if first then filled, count = string.gsub(noted, '^(%S+ %S+) %-', '%1 ' .. first) end
  if is_new or count > 0 then redis.pcall('SET', key, filled) end
end

-- The state of an outbound stream with its length and its changes. A key of another type is no stream: its channel says so with
-- each append that fails, and the other channel is looked at all the same.
local function outbound_state(stream, noted)
  local found = redis.call('TYPE', stream).ok == 'stream' and state(stream)
  if not found then return false end
  found[5], found[6] = redis.call('XLEN', stream), noted
  return found
end
