-- Append a batch to the cluster feed if this publisher still owns its end.
-- KEYS[1] the feed. ARGV: epoch, the id that this publisher wrote last ('' = none yet), MAXLEN, fields per entry (flat
-- count), the id of a newest entry that was not signed with our keys ('' = none), then the fields of the entries.
-- Returns {'ok', id of the new end}, {'stale', id of the end} or {'lost', ''}.
local key, epoch, own, width = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[4])
local newest, last_id, last_epoch = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1), '', 0
if newest[1] then
  last_id = newest[1][1]
  for i = 1, #newest[1][2], 2 do
    if newest[1][2][i] == 'e' then last_epoch = tonumber(newest[1][2][i + 1]) or 0 end
  end
  if last_id == ARGV[5] then last_epoch = 0 end
end
if own == '' then
  if last_epoch >= epoch then return {'stale', last_id} end
elseif own ~= last_id then
  return last_epoch > epoch and {'stale', last_id} or {'lost', ''}
end
local id
for from = 6, #ARGV, width do
  id = redis.call('XADD', key, 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, from, from + width - 1))
end
return {'ok', id}
