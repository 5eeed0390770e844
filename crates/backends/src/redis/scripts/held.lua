-- What every change by an owner begins with: the key; the token.
local held = redis.call('GET', KEYS[1])
if not held or held:sub(1, 1) ~= 'R' or held:sub(50, 65) ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if held:sub(34, 49) - now <= 0 then return 0 end
