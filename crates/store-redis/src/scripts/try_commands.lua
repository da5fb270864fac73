-- Tries commands on a key, to find those that this connection may not use. Each is given in a form that
-- changes nothing that matters.
-- KEYS: a key. ARGV: for each command the number of its words, and these, with `%` for the key.
-- Returns for each command its error, or an empty string.
local errors, at = {}, 1
while at <= #ARGV do
  local n, words = tonumber(ARGV[at]), {}
  for i = 1, n do
    local word = ARGV[at + i]
    words[i] = word == '%' and KEYS[1] or word
  end
  local tried = redis.pcall(unpack(words))
  errors[#errors + 1] = type(tried) == 'table' and tried.err or ''
  at = at + n + 1
end
return errors
