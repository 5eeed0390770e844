-- The stream; group, member, how many entries the member has in hand, how many more it wants, and
-- after how many milliseconds without care an entry is abandoned.
-- Gives the member what others have abandoned, oldest first, and answers these entries. As long as
-- another member cares for a single one it gives nothing: that one may be before the others in a lane.
local stream, group, me, idle = KEYS[1], ARGV[1], ARGV[2], ARGV[5]
local mine, theirs = 0, 0
for _, member in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
    if member[1] == me then mine = tonumber(member[2]) else theirs = theirs + member[2] end
end
-- What the member has and was never told of comes first: it is read again.
if theirs == 0 or mine > tonumber(ARGV[3]) then return {} end
local abandoned = {}
for _, entry in ipairs(redis.call('XPENDING', stream, group, 'IDLE', idle, '-', '+', mine + theirs)) do
    if entry[2] ~= me then abandoned[#abandoned + 1] = entry[1] end
end
if #abandoned < theirs then return {} end
local wanted = math.min(#abandoned, tonumber(ARGV[4]))
return redis.call('XCLAIM', stream, group, me, idle, unpack(abandoned, 1, wanted))
