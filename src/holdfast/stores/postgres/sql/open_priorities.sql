-- The priorities of the open lines of a queue, by jumping from one to the next, and the time.
with recursive open (priority) as (
    (select priority from holdfast.lines where state = 1 and queue = $1 order by priority desc limit 1)
    union all
    select (
        select line.priority
        from holdfast.lines as line
        where line.state = 1 and line.queue = $1 and line.priority < open.priority
        order by line.priority desc
        limit 1
    )
    from open
    where open.priority is not null
)
select priority from open where priority is not null
