-- The stream; group, member, milliseconds. Removes the member, and others that were not seen for so
-- long, but none that has entries in hand: they would be lost.
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local member = {}
    for i = 1, #told, 2 do member[told[i]] = told[i + 1] end
    local gone = member.name == ARGV[2] or member.idle > tonumber(ARGV[3])
    if gone and member.pending == 0 then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], member.name)
    end
end
return 1
