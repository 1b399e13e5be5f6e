-- Of an order, several jobs may be claimed together: it is free again when all of them have left.
--
-- `held` counts those at work, as it does for a limit.
update holdfast.gates as gate
set held = 1
where kind = 3 and exists (select from holdfast.jobs as job where job.id = gate.holder and job.stage = 3);

-- These jobs, which ran in these lines, are completed: a limit has their places again, and an order is free when
-- none of its jobs is at work or comes first. Lines that are parked there are to be opened, as many of each queue as have
-- left. Answers with their queues.
--
-- Gates are locked after the jobs, in the order of their ids. Which lines are parked is asked after that: until then,
-- others may still park lines there. A gate that one line leads through has been left by jobs of that line.
create or replace function holdfast.leave_gates(jobs uuid[], lines uuid[]) returns text[] language plpgsql as $$
declare
    left_gates   uuid[];
    left_lines   uuid[];
    numbers      integer[];
    firsts       uuid[]; -- of the jobs that have left through each: mostly there is no other
    served       text[];
    shared       uuid[];
    shared_by    integer[];
    lonely       uuid[];
    lonely_lines uuid[];
    woken        text[];
begin
    select
        array_agg(leaving.gate order by leaving.gate),
        array_agg(leaving.line order by leaving.gate),
        array_agg(leaving.number order by leaving.gate),
        array_agg(leaving.first order by leaving.gate),
        array_agg(distinct leaving.queue)
    into left_gates, left_lines, numbers, firsts, served
    from (
        select
            through.gate, count(*)::integer as number, (array_agg(mine.job))[1] as first,
            (array_agg(mine.line))[1] as line, min(through.queue) as queue
        from unnest(jobs, lines) as mine (job, line)
        cross join lateral (
            select queue, unnest(gates) as gate from holdfast.lines where id = any (array[mine.line])
        ) as through
        group by through.gate
    ) as leaving;
    -- "is true" hides other indexes from the planner: that of names has the kind too, that of parked lines the gate.
    perform from holdfast.gates where id = any (left_gates) and (kind in (1, 3)) is true order by id for update;
    if not found then
        return '{}';
    end if;
    with freed as (
        update holdfast.gates as gate
        set held = greatest(gate.held - leaving.number, 0),
            holder = case
                when gate.holder = leaving.first or (leaving.number > 1 and gate.holder = any (jobs)) then null
                else gate.holder
            end
        from unnest(left_gates, left_lines, numbers, firsts) as leaving (gate, line, number, first)
        where gate.id = any (array[leaving.gate]) and (gate.kind in (1, 3)) is true
        returning
            gate.id, gate.lines > 1 as is_shared, leaving.line, leaving.number,
            gate.kind = 1 or (gate.held = 0 and gate.holder is null) as has_room
    )
    select
        array_agg(id) filter (where is_shared), array_agg(number) filter (where is_shared),
        array_agg(id) filter (where not is_shared), array_agg(line) filter (where not is_shared)
    into shared, shared_by, lonely, lonely_lines
    from freed
    where has_room;
    if lonely is not null then
        select holdfast.wake(array_agg(parked.queue), array_agg(parked.id)) into woken
        from unnest(lonely, lonely_lines) as left_by (gate, line)
        cross join lateral (
            select queue, id
            from holdfast.lines
            where id = any (array[left_by.line]) and (state = 2 and parked_at = left_by.gate) is true
        ) as parked;
    end if;
    if shared is not null then
        woken := coalesce(woken, '{}') || holdfast.make_room(shared, shared_by, served, '{}');
    end if;
    return woken;
end
$$;
