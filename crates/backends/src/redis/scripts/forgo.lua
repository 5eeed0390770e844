-- The names of ids; the lock of whoever gives them up.
for _, name in ipairs(KEYS) do
    if redis.call('GET', name) == ARGV[1] then redis.call('DEL', name) end
end
return 1
