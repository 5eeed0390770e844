-- The stream; group, member, how many entries the member has in hand, how many more it wants, and
-- whether one member at a time may have entries of the stream.
-- Answers entries and whether there are more, or 'busy' while others have some.
local mine, others = 0, false
for _, member in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1])[4] or {}) do
    if member[1] == ARGV[2] then mine = tonumber(member[2]) else others = true end
end
local from, count = '>', ARGV[4]
-- Answers that never reached the member are told again.
if mine > tonumber(ARGV[3]) then
    from, count = '0', mine
elseif others and ARGV[5] == '1' then
    return 'busy'
end
local group = {'GROUP', ARGV[1], ARGV[2], 'COUNT', count, 'STREAMS', KEYS[1], from}
local got = redis.call('XREADGROUP', unpack(group))
if not got then return {0, {}} end
local entries = got[1][2]
local more = from == '>' and redis.call('XRANGE', KEYS[1], '(' .. entries[#entries][1], '+', 'COUNT', 1)
return {more and #more or 0, entries}
