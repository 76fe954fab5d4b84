-- Change the expiry of a session, unless it was renewed meanwhile.
--
-- KEYS  1 expiry
-- ARGV  1 session   2 its expiry as read, or "" if it has none   3 its new expiry
-- Returns "1", or "" if its expiry is another by now.

local ends_at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if (ends_at and tonumber(ends_at) or nil) ~= tonumber(ARGV[2]) then return '' end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return '1'
