-- Let a session run out at another instant, unless it was renewed meanwhile.
--
-- KEYS  1 expiry
-- ARGV  1 session   2 when it runs out, as was read, or "" if nothing says so   3 when it should
-- Returns "1", or "" if that is not so any more.

local ends_at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if (ends_at and tonumber(ends_at) or nil) ~= tonumber(ARGV[2]) then return '' end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return '1'
