-- The names of ids; the lock, how long ids live in milliseconds, what is remembered of each id, and
-- then the commands, each as the place of the id that it is for (0: of all), the number of its words
-- and the words.
-- Answers 1, or 0 when a lock is not held any more, or how many commands had taken effect when one
-- failed, and its error. Then an id is remembered if all its commands had taken effect, as half done
-- if some had, and otherwise free again.
for _, name in ipairs(KEYS) do
    if redis.call('GET', name) ~= ARGV[1] then return 0 end
end
-- The first write fails on all that makes writes fail; nothing has happened then.
for i, name in ipairs(KEYS) do redis.call('SET', name, ARGV[2 + i], 'PX', ARGV[2]) end
local at, done, begun = 3 + #KEYS, 0, {}
while ARGV[at] do
    local last = at + 1 + tonumber(ARGV[at + 1])
    local answer = redis.pcall(unpack(ARGV, at + 2, last))
    if type(answer) == 'table' and answer.err then
        local missing = {}
        while ARGV[at] do
            missing[ARGV[at]] = true
            at = at + 2 + tonumber(ARGV[at + 1])
        end
        for i, name in ipairs(KEYS) do
            local place = tostring(i)
            if not (missing[place] or missing['0']) then
                -- It is whole.
            elseif begun[place] or begun['0'] then
                redis.call('SET', name, 'H' .. answer.err, 'PX', ARGV[2])
            else
                redis.call('DEL', name)
            end
        end
        return {done, answer.err}
    end
    begun[ARGV[at]] = true
    at, done = last + 1, done + 1
end
return 1
