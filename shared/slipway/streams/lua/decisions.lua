-- Append one recorded tick to a decision log, within its limits.
-- KEYS[1] the log. ARGV: the id of the entry's base ('' for a base), maximum number of entries, maximum bytes, bytes of
-- this entry, then its fields. The script adds the field `s`: all bytes ever written, with this entry's, so that the
-- stored bytes are the difference of two entries. It removes the oldest entries until the oldest one is a base.
-- Returns the new id, or '' when the base was removed.
local key, base, most, bytes, size = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function field(entry, name)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == name then return entry[2][i + 1] end
  end
  return nil
end
local sum, newest = size, redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
if newest[1] then sum = (tonumber(field(newest[1], 's')) or 0) + size end
local count = redis.call('XLEN', key)
while count > 0 do
  local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  local before = (tonumber(field(oldest, 's')) or 0) - #(field(oldest, 'd') or '')
  if field(oldest, 'n') == '0' and count < most and sum - before <= bytes then break end
  redis.call('XDEL', key, oldest[1])
  count = count - 1
end
if base ~= '' and not redis.call('XRANGE', key, base, base)[1] then return '' end
return redis.call('XADD', key, '*', 's', string.format('%.0f', sum), unpack(ARGV, 5))
