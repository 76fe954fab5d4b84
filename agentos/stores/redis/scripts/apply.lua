-- One atomic step of a session: write what a client has decided, if all that it depends on is unchanged. The rules are
-- in the client.
--
-- KEYS  1 meta     hash: version, shift, sequence, token; fields that only clients read; and for each session under its
--                  id "<last step> <last step that wrote> <token granted to that>", so that no step is executed twice
--       2 records  hash: name -> text; "c<number>" a credential with its leases, "q<number>" a quota,
--                  "s<id>" a session, "line" the list of sessions, "waits" and "front" written when a session begins to wait
--       3 changes  sorted set: name of a record -> number of the change that wrote it last, which is its version
--       4 expiry   sorted set: session -> instant at which it expires if it is not renewed
-- ARGV  1 words, "-" for none: the time to use instead of the server's; version of meta; the server times between which
--         the step is valid; session; number of the step; "1" if the session begins; seconds to renew it for; a token
--         above which one is to be granted; the newest change that the caller has; number of records to write; number
--         of sessions to end
--       2 the records it depends on, name and version of each; then records to write, sessions to end, and
--         channels to notify
-- The first NUL in a written text stands for the token. The reply is one text, its parts separated by NUL:
--       status, time, newest change, token, last step, the next two sessions to expire, number of sessions, then the
--       records that the caller lacks (3 parts each). The parts about sessions are empty if the caller only writes and
--       has all changes.

local hour, version, earliest, latest, me, step, joins, renew, floor, seen, writes, ends = string.match(
  ARGV[1], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
hour = tonumber(hour)
if not hour then
  local t = redis.call('TIME')
  hour = t[1] + t[2] / 1000000
end
renew = tonumber(renew)
local meta = redis.call('HMGET', KEYS[1], 'version', 'shift', 'sequence', 'token', me)
local sequence, token, last = meta[3] or '', '', meta[5] or ''
local up_to_date = seen == meta[3]  -- the caller has all changes, so no version can differ

local function answer(what)
  local said = { what, string.format('%.6f', hour), sequence, token, last, '', '', '', '', '' }
  if not up_to_date or me == '-' or renew then
    local first = redis.call('ZRANGE', KEYS[4], 0, 1, 'WITHSCORES')
    for i = 1, #first do said[5 + i] = first[i] end
    said[10] = redis.call('ZCARD', KEYS[4])
  end
  if not up_to_date and meta[3] then
    local news = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. seen, meta[3], 'WITHSCORES')
    for i = 1, #news, 2 do
      said[#said + 1] = news[i]
      said[#said + 1] = news[i + 1]
      said[#said + 1] = redis.call('HGET', KEYS[2], news[i]) or ''
    end
  end
  return table.concat(said, '\0')
end

local function ends_at(session)
  return tonumber(redis.call('ZSCORE', KEYS[4], session) or 0)
end

if meta[1] ~= version then return answer('meta') end
if earliest ~= '-' and (hour < tonumber(earliest) or hour > tonumber(latest)) then return answer('time') end

local now = hour + tonumber(meta[2])
if me ~= '-' then
  local before = tonumber(string.match(last, '^%d+'))
  if before and before >= tonumber(step) then return answer('late') end
  if joins == '-' then
    if ends_at(me) <= now then return answer('gone') end  -- other sessions may have ended it, or may do so now
    if renew then redis.call('ZADD', KEYS[4], now + renew, me) end  -- even if the step is not executed
  end
end

if not up_to_date then
  for name, was in string.gmatch(ARGV[2], '(%S+) (%S+)') do
    if (redis.call('ZSCORE', KEYS[3], name) or '0') ~= was then return answer('news') end
  end
end
local written = 3
local ended = written + 2 * writes
local rings = ended + ends
for i = ended, rings - 1 do
  if ends_at(ARGV[i]) > now then return answer('news') end
end

if written < ended then
  sequence = string.format('%.0f', meta[3] + 1)
  if floor ~= '-' then token = string.format('%.0f', math.max(tonumber(meta[4]), tonumber(floor)) + 1) end
  for i = written, ended - 1, 2 do
    local text = ARGV[i + 1]
    local place = token ~= '' and string.find(text, '\0', 1, true)
    if place then text = string.sub(text, 1, place - 1) .. token .. string.sub(text, place + 1) end
    redis.call('HSET', KEYS[2], ARGV[i], text)
    redis.call('ZADD', KEYS[3], sequence, ARGV[i])
  end
end
if joins ~= '-' then redis.call('ZADD', KEYS[4], now + renew, me) end
if me ~= '-' and written < ended then
  local given = token ~= '' and token or meta[4]
  redis.call('HSET', KEYS[1], 'sequence', sequence, 'token', given, me, step .. ' ' .. step .. ' ' .. token)
elseif me ~= '-' and renew then
  redis.call('HSET', KEYS[1], me, step .. (string.match(last, ' .*') or ' 0 '))
elseif written < ended then
  redis.call('HSET', KEYS[1], 'sequence', sequence)
end
for i = ended, rings - 1 do
  redis.call('ZREM', KEYS[4], ARGV[i])
  redis.call('HDEL', KEYS[1], ARGV[i])
  redis.call('HDEL', KEYS[2], 's' .. ARGV[i])
  redis.call('ZREM', KEYS[3], 's' .. ARGV[i])  -- clients learn it from the list of sessions
end
for i = rings, #ARGV do redis.pcall('PUBLISH', ARGV[i], '') end  -- may lose its permission; waiting processes also poll
return answer('done')
