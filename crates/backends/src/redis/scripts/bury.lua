-- The stream, that of dead letters; group, id of the entry, how many words say why it died, these
-- words, and the fields of the entry, for when the stream does not have it any more.
-- Who acknowledges the entry writes the letter, so that there is one.
local stream, dead, group, id, words = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local found = redis.call('XRANGE', stream, id, id)[1]
if redis.call('XACK', stream, group, id) == 0 then return 0 end
local letter, said = {}, {}
for i = 4, 3 + words, 2 do
    letter[#letter + 1] = ARGV[i]
    letter[#letter + 1] = ARGV[i + 1]
    said[ARGV[i]] = true
end
local fields = found and found[2] or {unpack(ARGV, 4 + words)}
for i = 1, #fields, 2 do
    if not said[fields[i]] then
        letter[#letter + 1] = fields[i]
        letter[#letter + 1] = fields[i + 1]
    end
end
redis.call('XADD', dead, '*', unpack(letter))
return 1
