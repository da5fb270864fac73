-- Writes the cached checkpoint unless that would move it back.
-- KEYS: the key of a checkpoint.
-- ARGV: milliseconds, sequence, fence, the value to write, 1 if it must advance, the highest fence that is
-- not garbled.
-- Returns 1 if the key holds the value, 0 if it was rejected.
-- MODEL-10
-- Ids have up to 20 digits, which Lua's numbers cannot represent: they are compared as digits. A garbled
-- value is overwritten; otherwise it would be permanent, because no term would have a higher fence.
local function older(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function digits(text) return (string.gsub(text, '^0+(%d)', '%1')) end
local function fits(text) return not older('18446744073709551615', text) end
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'string' then
  if stored == ARGV[4] then return 1 end
  local ms, seq, rest = string.match(stored, '^(%d+)%-(%d+)(.*)$')
  local fence = ms and (rest == '' and '0' or string.match(rest, '^@(%d+)$'))
  if fence then
    ms, seq, fence = digits(ms), digits(seq), digits(fence)
    local readable = fits(ms) and fits(seq) and not older(ARGV[6], fence)
    if readable and older(ARGV[3], fence) then return 0 end
    if readable and ARGV[5] == '1' and fence == ARGV[3] then
      local advances = older(ms, ARGV[1]) or (ms == ARGV[1] and older(seq, ARGV[2]))
      if not advances then return 0 end
    end
  end
end
redis.call('SET', KEYS[1], ARGV[4])
return 1
