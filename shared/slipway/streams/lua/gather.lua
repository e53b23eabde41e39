-- A gathering: peers send data, and each receives the data of all once as many are present as each peer has said.
-- KEYS[1] a hash: n number of peers, c number of present peers, b bytes of their data, v changes when another process
-- removes a seat, s '1' once complete, o the processes that hold seats ('name=ms of the last sign of life ...'), w:<id>
-- a seat ('process token rank'), d:<id> its data, m:<id> its code. ARGV[1] the operation: join, look or leave; ARGV[2]
-- the caller's time in ms (the server's own time would require a permission that no other script needs).
-- Returns {outcome, n, c, v}. memory_gather.py has the same logic.
local key, now = KEYS[1], tonumber(ARGV[2])
local function answer(outcome)
  local found = redis.call('HMGET', key, 'n', 'c', 'v')
  return {outcome, tonumber(found[1] or 0), tonumber(found[2] or 0), tonumber(found[3] or 0)}
end
local function drop(id)
  redis.call('HINCRBY', key, 'b', -redis.call('HSTRLEN', key, 'd:' .. id))
  redis.call('HDEL', key, 'w:' .. id, 'd:' .. id, 'm:' .. id)
  return redis.call('HINCRBY', key, 'c', -1)
end
-- Record that this process lives; free the seats of processes that were silent for too long.
local function beat(owner, silence)
  local kept, gone, any = {owner .. '=' .. string.format('%.0f', now)}, {}, false
  for name, at in string.gmatch(redis.call('HGET', key, 'o') or '', '(%S+)=(%d+)') do
    if name ~= owner then
      if now - tonumber(at) > silence then
        gone[name], any = true, true
      else
        kept[#kept + 1] = name .. '=' .. at
      end
    end
  end
  redis.call('HSET', key, 'o', table.concat(kept, ' '))
  if not any then return end
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'w:' and gone[string.match(all[i + 1], '^%S+')] then
      drop(string.sub(all[i], 3))
      redis.call('HINCRBY', key, 'v', 1)
    end
  end
end

local op = ARGV[1]
local is_done = redis.call('HGET', key, 's') == '1'
if op == 'look' then
  if redis.call('EXISTS', key) == 0 then return {'gone', 0, 0, 0} end
  if is_done then return answer('done') end
  beat(ARGV[3], tonumber(ARGV[5]))
  redis.call('EXPIRE', key, ARGV[4])
  return answer('open')
end
local id = ARGV[3]
local seat = redis.call('HGET', key, 'w:' .. id)
local token = seat and string.match(seat, '^%S+ (%S+)')
if op == 'leave' then
  if not is_done and token == ARGV[4] and drop(id) == 0 then redis.call('DEL', key) end
  return answer('open')
end

-- join: id, token, owner, rank, peers, maximum bytes, seconds to live, ms of silence, data, code (where there are keys)
if is_done then return answer('done') end
local peers, data = tonumber(ARGV[7]), ARGV[11]
beat(ARGV[5], tonumber(ARGV[10]))
seat = redis.call('HGET', key, 'w:' .. id) -- beat() may have freed it, as the seat of a silent process
token = seat and string.match(seat, '^%S+ (%S+)')
local others = tonumber(redis.call('HGET', key, 'c') or 0) - (seat and 1 or 0)
if others > 0 and tonumber(redis.call('HGET', key, 'n')) ~= peers then return answer('mismatch') end
local bytes = tonumber(redis.call('HGET', key, 'b') or 0) - redis.call('HSTRLEN', key, 'd:' .. id) + #data
if bytes > tonumber(ARGV[8]) then return answer('full') end
if seat and token ~= ARGV[4] then redis.call('HINCRBY', key, 'v', 1) end
-- A gathering that was lost and begun again has another version, so that peers of the old one notice it.
redis.call('HSETNX', key, 'v', string.format('%.0f', now))
local seated = ARGV[5] .. ' ' .. ARGV[4] .. ' ' .. ARGV[6]
redis.call('HSET', key, 'n', peers, 'c', others + 1, 'b', bytes, 'w:' .. id, seated, 'd:' .. id, data)
if ARGV[12] then redis.call('HSET', key, 'm:' .. id, ARGV[12]) else redis.call('HDEL', key, 'm:' .. id) end
redis.call('EXPIRE', key, ARGV[9])
if others + 1 < peers then return answer('open') end
redis.call('HSET', key, 's', '1')
return answer('completed')
