-- The stream, that of dead letters; group, id of the entry, how many words a letter may have, how many
-- words say why it died, these words, and the fields of the entry, for when the stream does not have
-- it any more.
-- Who finds the entry in somebody's hands writes the letter, so that there is one. It is acknowledged
-- last: a script that fails half-way is not undone.
-- Answers 1, 0 when nobody has the entry in hand, or the letter if it has too many words to be written
-- by a script.
local stream, dead, group, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local most, words = tonumber(ARGV[3]), tonumber(ARGV[4])
local pending = redis.pcall('XPENDING', stream, group, id, id, 1)
if pending.err then
    if pending.err:find('NOGROUP', 1, true) then return 0 end
    return pending
end
if #pending == 0 then return 0 end
local letter, said = {}, {}
for i = 5, 4 + words, 2 do
    letter[#letter + 1] = ARGV[i]
    letter[#letter + 1] = ARGV[i + 1]
    said[ARGV[i]] = true
end
local function add(fields, first)
    for i = first, #fields, 2 do
        if not said[fields[i]] then
            letter[#letter + 1] = fields[i]
            letter[#letter + 1] = fields[i + 1]
        end
    end
end
local found = redis.call('XRANGE', stream, id, id)[1]
if found then add(found[2], 1) else add(ARGV, 5 + words) end
if #letter > most then return letter end
redis.call('XADD', dead, '*', unpack(letter))
redis.call('XACK', stream, group, id)
return 1
