-- Set each field to the larger of its present number and the given one. KEYS[1] the hash, ARGV[1] its seconds to live
-- from now on, then fields and whole numbers in turn.
for place = 2, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[1], ARGV[place]) or '')
  if not known or known < tonumber(ARGV[place + 1]) then
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 0
