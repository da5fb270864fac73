-- Prepended to every script that reads or writes markers. The only definition of their format:
-- `published:<entry id>`.

-- The value of the marker for an entry.
local function marker(entry_id) return 'published:' .. entry_id end

-- The entry id in a marker; false for any other value of a lease key, or none.
local function published_entry_id(value)
  return type(value) == 'string' and string.match(value, '^published:(%d+%-%d+)$') or false
end
