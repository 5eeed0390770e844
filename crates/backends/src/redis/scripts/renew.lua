-- Lease in microseconds; how long the record lives in milliseconds.
local claim = held:sub(1, 33) .. string.format('%016.0f', now + ARGV[2]) .. held:sub(50)
redis.call('SET', KEYS[1], claim, 'PX', ARGV[3])
return 1
