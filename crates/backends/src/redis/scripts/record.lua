-- The name of the id; the caller's lock, its lease in milliseconds.
-- Answers 1 when the caller has the lock, 0 when another has, or what is known of the effect.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
    if held:sub(1, 1) == 'L' then return 0 end
    return held
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
