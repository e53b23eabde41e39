-- Append a pack of lines after the last line of its log, and remove the oldest packs beyond the log's share.
-- KEYS[1] the stream of the allocation's lines; KEYS[2] a hash: the position of each log by its name (see
-- logpacks.encode_position), `last` the id of the newest entry, `key:<event>` how often an event was appended; KEYS[3] a
-- hash: `<log>:<place>` a pack that may be removed ('id bytes number'). memory_logs.py has the same logic.
-- ARGV: log, expected number of its last line (-1: any), event ('' for none), count of the event, number of the first
-- line, count of lines, caller's time in ms, bytes of the first lines, bytes of the last lines, seconds to live, log of
-- an earlier attempt to shorten ('' for none), bytes that it keeps, then second, seen, time, ended, then the expected
-- second and seen of the log, then the fields of the entry.
-- Returns {1 or 0, the stored position or ''}.
local stream, states, packs = KEYS[1], KEYS[2], KEYS[3]
local name = ARGV[1]

local function read(of)
  local found = {}
  for word in string.gmatch(redis.call('HGET', states, of) or '', '%S+') do found[#found + 1] = word end
  local s = {number = tonumber(found[1] or 0), second = found[2] or '-', seen = found[3] or '0', time = found[4] or '-',
    ended = found[5] or '0'}
  s.first_end, s.kept_from, s.first_bytes = tonumber(found[6] or 0), tonumber(found[7] or 0), tonumber(found[8] or 0)
  s.kept_bytes, s.head, s.tail = tonumber(found[9] or 0), tonumber(found[10] or 0), tonumber(found[11] or 0)
  return s
end
local function write(of, s)
  local text = table.concat({string.format('%.0f', s.number), s.second, s.seen, s.time, s.ended,
    string.format('%.0f', s.first_end), string.format('%.0f', s.kept_from), string.format('%.0f', s.first_bytes),
    string.format('%.0f', s.kept_bytes), string.format('%.0f', s.head), string.format('%.0f', s.tail)}, ' ')
  redis.call('HSET', states, of, text)
  return text
end
local function cut(of, s, most)
  while s.kept_bytes > most and s.head - s.tail > 1 do
    local field = of .. ':' .. s.tail
    local id, bytes = string.match(redis.call('HGET', packs, field) or '', '^(%S+) (%d+)')
    if id then
      redis.call('XDEL', stream, id)
      redis.call('HDEL', packs, field)
      s.kept_bytes = s.kept_bytes - tonumber(bytes)
    end
    s.tail = s.tail + 1
    local first = string.match(redis.call('HGET', packs, of .. ':' .. s.tail) or '', '(%d+)$')
    s.kept_from = tonumber(first or s.kept_from)
  end
end

local raw = redis.call('HGET', states, name)
local s = read(name)
local expected, event, times = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if expected >= 0 and (expected ~= s.number or ARGV[17] ~= s.second or ARGV[18] ~= s.seen) then return {0, raw or ''} end
if event ~= '' then
  local said = tonumber(redis.call('HGET', states, 'key:' .. event) or 0)
  if said > 0 and times < 2 * said then return {0, raw or ''} end
  redis.call('HSET', states, 'key:' .. event, times)
end
if not raw and ARGV[11] ~= '' and redis.call('HEXISTS', states, ARGV[11]) == 1 then
  local older = read(ARGV[11])
  cut(ARGV[11], older, tonumber(ARGV[12]))
  write(ARGV[11], older)
end

local first, count = tonumber(ARGV[5]), tonumber(ARGV[6])
if expected < 0 then first = s.number + 1 end
if count > 0 then
  local ms, seq = tonumber(ARGV[7]), 0
  local last_ms, last_seq = string.match(redis.call('HGET', states, 'last') or '', '^(%d+)-(%d+)$')
  if last_ms and tonumber(last_ms) >= ms then
    ms, seq = tonumber(last_ms), tonumber(last_seq) + 1
  end
  local function id_of() return string.format('%.0f', ms) .. '-' .. string.format('%.0f', seq + count - 1) end
  local id = id_of()
  local bytes = 150
  for place = 20, #ARGV, 2 do bytes = bytes + #ARGV[place] end
  local added = redis.pcall('XADD', stream, id, unpack(ARGV, 19))
  if type(added) == 'table' and added.err then
    if not string.find(added.err, 'equal or smaller') then return added end
    -- The stream has a newer id than `last`: `last` was lost, or another client wrote the entry.
    local about = redis.call('XINFO', 'STREAM', stream)
    for place = 1, #about, 2 do
      if about[place] == 'last-generated-id' then
        local top_ms, top_seq = string.match(about[place + 1], '^(%d+)-(%d+)$')
        ms, seq = tonumber(top_ms), tonumber(top_seq) + 1
      end
    end
    id = id_of()
    redis.call('XADD', stream, id, unpack(ARGV, 19))
  end
  redis.call('HSET', states, 'last', id)
  local last = first + count - 1
  if s.head == 0 and s.first_bytes + bytes <= tonumber(ARGV[8]) then
    s.first_bytes, s.first_end = s.first_bytes + bytes, last
  else
    redis.call('HSET', packs, name .. ':' .. s.head, id .. ' ' .. bytes .. ' ' .. string.format('%.0f', first))
    if s.head == s.tail then s.kept_from = first end
    s.head, s.kept_bytes = s.head + 1, s.kept_bytes + bytes
    cut(name, s, tonumber(ARGV[9]))
  end
  s.number = last
else
  s.number = math.max(s.number, first - 1)
end
s.second, s.seen, s.time, s.ended = ARGV[13], ARGV[14], ARGV[15], ARGV[16]
local text = write(name, s)
redis.call('EXPIRE', stream, ARGV[10])
redis.call('EXPIRE', states, ARGV[10])
redis.call('EXPIRE', packs, ARGV[10])
return {1, text}
