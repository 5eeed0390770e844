-- Version and body; how long the record lives in milliseconds.
redis.call('SET', KEYS[1], 'D' .. held:sub(2, 33) .. ARGV[2], 'PX', ARGV[3])
return 1
