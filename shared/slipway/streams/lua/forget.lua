-- Remove consumers that own no entry and were idle for ARGV[2] ms. KEYS[1] the stream, ARGV[1] the group.
-- It is one script, because DELCONSUMER drops the pending entries of the consumer.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local gone = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local row = {}
  for i = 1, #consumer, 2 do row[consumer[i]] = consumer[i + 1] end
  if row['pending'] == 0 and row['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], row['name'])
    gone = gone + 1
  end
end
return gone
