-- Append one entry to an allocation's stream, in order and exactly once; before that, append it to a given firehose.
-- KEYS[1] the stream; KEYS[2] the shard of the firehose (absent on a Redis cluster, where it is in another slot).
-- ARGV: creation ms; seq; oldest seq ('' = any seq may begin a stream, -1 = this seq must not); truncated from ('' =
-- not marked); MAXLEN; EXPIRE seconds (0 = none); MAXLEN of the firehose; then the fields.
-- Returns {outcome, last seq}; the last seq is -1 for an empty stream. judge() in order.py has the same logic.
local key, ms, seq = KEYS[1], ARGV[1], tonumber(ARGV[2])
local last, newest = -1, redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
if newest[1] then
  local sep = string.find(newest[1][1], '-', 1, true)
  if string.sub(newest[1][1], 1, sep - 1) ~= ms then
    -- The newest entry is not ours, and its id would block our entries for ever. The stream is a copy: start anew.
    redis.call('DEL', key)
    return {'gap', -1}
  end
  last = tonumber(string.sub(newest[1][1], sep + 1))
elseif redis.call('EXISTS', key) == 1 then
  -- Another client removed all entries, and the stream still refuses every id that it had.
  redis.call('DEL', key)
end
local ttl = tonumber(ARGV[6])
if last >= seq then
  if ttl > 0 and redis.call('TTL', key) < 0 then redis.call('EXPIRE', key, ttl) end
  return {'duplicate', last}
end
local fits
if last < 0 then
  fits = ARGV[3] == '' or tonumber(ARGV[3]) == seq
elseif ARGV[4] ~= '' then
  fits = tonumber(ARGV[4]) == last + 1
else
  fits = seq == last + 1
end
if not fits then return {'gap', last} end
if KEYS[2] then redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[7], '*', unpack(ARGV, 8)) end
local added = redis.pcall('XADD', key, 'MAXLEN', '~', ARGV[5], ms .. '-' .. ARGV[2], unpack(ARGV, 8))
if added.err then
  if not string.find(added.err, 'equal or smaller', 1, true) then return added end
  -- Another client removed the newest entries, so the stream starts anew.
  redis.call('DEL', key)
  return {'gap', -1}
end
if ttl > 0 then redis.call('EXPIRE', key, ttl) end
return {'appended', seq}
