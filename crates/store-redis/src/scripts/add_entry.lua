-- Prepended to the scripts that append to an outbound stream.

-- Appends the names and values in ARGV[first] to ARGV[last], and trims the stream to about `max_len` entries;
-- '0' keeps all. Returns the id, or an error table.
local function add_entry(stream, max_len, first, last)
  if max_len == '0' then
    return redis.pcall('XADD', stream, '*', unpack(ARGV, first, last))
  end
  return redis.pcall('XADD', stream, 'MAXLEN', '~', max_len, '*', unpack(ARGV, first, last))
end
