-- Remove entries of a work stream that every group has acknowledged. KEYS[1] the stream. Returns the number of removed
-- entries.
-- MAXLEN would remove entries that are still pending or were never delivered.
local key = KEYS[1]
if redis.call('EXISTS', key) == 0 then return 0 end
local function parts(id)
  local sep = string.find(id, '-', 1, true)
  return tonumber(string.sub(id, 1, sep - 1)), tonumber(string.sub(id, sep + 1))
end
local function less(a, b)
  local a_ms, a_seq = parts(a)
  local b_ms, b_seq = parts(b)
  return a_ms < b_ms or (a_ms == b_ms and a_seq < b_seq)
end
local floor
for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
  local row = {}
  for i = 1, #group, 2 do row[group[i]] = group[i + 1] end
  local mark = row['last-delivered-id']
  local pending = redis.call('XPENDING', key, row['name'])
  if pending[1] > 0 and less(pending[2], mark) then mark = pending[2] end
  if not floor or less(mark, floor) then floor = mark end
end
if not floor then return 0 end
return redis.call('XTRIM', key, 'MINID', floor)
