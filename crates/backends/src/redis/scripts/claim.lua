-- The key; fingerprint, lease in microseconds, how long the record lives in milliseconds, claimant.
-- Answers {token, attempt}, the microseconds another's lease still lasts, the finished record, or
-- nothing: the key belongs to another request. A claimant that asks again gets the same answer.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token, attempt = now, 1
local held = redis.call('GET', KEYS[1])
if held then
    if held:sub(2, 33) ~= ARGV[1] then return false end
    if held:sub(1, 1) == 'D' then return held end
    local left = held:sub(34, 49) - now
    if left > 0 and held:sub(66, 81) == ARGV[4] then return {held:sub(50, 65) + 0, held:sub(82) + 0} end
    if left > 0 then return left end
    token = math.max(now, held:sub(50, 65) + 1)
    attempt = held:sub(82) + 1
end
local claim = 'R' .. ARGV[1] .. string.format('%016.0f%016.0f', now + ARGV[2], token) .. ARGV[4] .. attempt
redis.call('SET', KEYS[1], claim, 'PX', ARGV[3])
return {token, attempt}
