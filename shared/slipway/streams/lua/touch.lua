-- Reset the idle time of entries that the consumer still owns; entries that another consumer has claimed do not change.
-- KEYS[1] the stream. ARGV: group, consumer, then pairs of id and delivery count ('' = keep it).
-- Returns the number of entries that it still owned.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local group, consumer, owned = ARGV[1], ARGV[2], 0
for i = 3, #ARGV, 2 do
  local row = redis.pcall('XPENDING', KEYS[1], group, ARGV[i], ARGV[i], 1)
  if row.err then return owned end
  if row[1] and row[1][2] == consumer then
    if ARGV[i + 1] == '' then
      redis.call('XCLAIM', KEYS[1], group, consumer, 0, ARGV[i], 'JUSTID')
    else
      redis.call('XCLAIM', KEYS[1], group, consumer, 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    end
    owned = owned + 1
  end
end
return owned
