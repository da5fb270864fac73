-- Appends entries whose leases are held, or are free if the token is that of a permit, and leaves a marker of
-- each: under the name of its lease, or in its hash if there was no lease.
-- KEYS: the stream, its server changes, their old name, the permit of the token, then the lease of each
-- entry; then, if they are used, the old names of the leases; then the hashes of the markers.
-- ARGV: lengths of runs, token, TTL of a marker in ms, length to keep or 0, run id and replication id of the
-- only server that may append, or two empty texts, the number of entries, then for each entry the number of
-- its names and values, and these.
-- Returns run id and replication id of this server, then for each entry: its id, appended now or before; 0 if
-- the lease is lost or this is another server; {error} if the stream rejected it.
-- MODEL-14
local stream, token, ttl, max_len, n = KEYS[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[7])
local has_old = first_hash > n + 4
local run_id, replication_id = server()
local noted, is_new = server_changes(stream, KEYS[2], KEYS[3], run_id, replication_id)
local answers, at, first = {run_id, replication_id}, 8, nil
local is_expected = ARGV[5] == '' or ARGV[5] == run_id and ARGV[6] == replication_id
local is_permitted = redis.call('EXISTS', KEYS[4]) == 1
local all_free = is_permitted and not has_old and redis.call('EXISTS', unpack(KEYS, 5, n + 4)) == 0
local permitted = is_permitted and permitted_ids(5)
-- The names and values of new markers in the hash of the present run.
local marks, run, left = {}, 1, run_lengths[1]
local function write_marks()
  if #marks > 0 then
    local hash = KEYS[first_hash + run]
    if type(redis.pcall('HSET', hash, unpack(marks))) == 'table' then
      for i = 1, #marks, 2 do redis.pcall('SET', marks[i], marker(marks[i + 1]), 'PX', ttl) end
    else
      redis.pcall('PEXPIRE', hash, ttl)
    end
  end
  marks, run, left = {}, run + 1, run_lengths[run + 1]
end
for i = 1, n do
  local count, lease, old = tonumber(ARGV[at]), KEYS[i + 4], has_old and KEYS[n + i + 4]
  local held = not all_free and redis.pcall('GET', lease)
  local is_own = held == token
  local found = not is_own and (published_entry_id(held) or (old and published_entry_id(redis.pcall('GET', old))))
  if not is_own and not found then
    -- An earlier call under the permit may have appended it.
    permitted = permitted or permitted_ids(5)
    found = permitted[i]
    is_own = not found and is_permitted and not held and not (old and redis.pcall('GET', old))
  end
  if is_own and is_expected then
    local id = add_entry(stream, max_len, at + 1, at + count)
    if type(id) == 'table' then
      answers[i + 2] = {id.err}
    else
      if held or old then
        redis.pcall('SET', lease, marker(id), 'PX', ttl)
        if old then redis.pcall('SET', old, marker(id), 'PX', ttl) end
      else
        marks[#marks + 1], marks[#marks + 2] = lease, id
      end
      answers[i + 2], first = id, first or id
    end
  else
    answers[i + 2] = found or 0
  end
  at, left = at + count + 1, left - 1
  if left == 0 then write_marks() end
end
note_changes(KEYS[2], noted, is_new, first)
return answers
