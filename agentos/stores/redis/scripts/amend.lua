-- Change the store's metadata, unless another process has changed it meanwhile.
--
-- KEYS  1 meta
-- ARGV  1 its version as read, or "" if there was none   2 a token already granted; then names and values to set
-- Returns "1", or "" if its version is another by now.

local meta = redis.call('HMGET', KEYS[1], 'version', 'token')
if (meta[1] or '') ~= ARGV[1] then return '' end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
if tonumber(ARGV[2]) > tonumber(meta[2] or -1) then redis.call('HSET', KEYS[1], 'token', ARGV[2]) end
return '1'
