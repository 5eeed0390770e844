-- The names of ids; the lock, how long ids live in milliseconds, what is remembered of each id, and
-- then the commands, each as the number of its words and the words.
-- Answers 1, or 0 when a lock is not held any more, or how many commands had taken effect when one
-- failed, and its error.
for _, name in ipairs(KEYS) do
    if redis.call('GET', name) ~= ARGV[1] then return 0 end
end
-- The first write fails on all that makes writes fail; nothing has happened then.
for i, name in ipairs(KEYS) do redis.call('SET', name, ARGV[2 + i], 'PX', ARGV[2]) end
local at, done = 3 + #KEYS, 0
while ARGV[at] do
    local last = at + tonumber(ARGV[at])
    local answer = redis.pcall(unpack(ARGV, at + 1, last))
    if type(answer) == 'table' and answer.err then
        for _, name in ipairs(KEYS) do
            if done == 0 then
                redis.call('DEL', name)
            else
                redis.call('SET', name, 'H' .. answer.err, 'PX', ARGV[2])
            end
        end
        return {done, answer.err}
    end
    at, done = last + 1, done + 1
end
return 1
