-- If a gate has room, lines of every queue are opened: perhaps nobody claims from the one whose turn it is.
drop index holdfast.lines_parked;
create index lines_parked on holdfast.lines (parked_at, queue, priority desc, turn, id) where state = 2;

-- `once`: the line, if the wake is for one that perhaps nobody claims for long. Meanwhile it is not woken again.
alter table holdfast.wakes add column once uuid;
create index wakes_once on holdfast.wakes (once) where once is not null;

-- There is room at these gates, for so many: as many of the lines of each queue that are parked there are to be opened,
-- except `but_not`. Answers with their queues.
--
-- Somebody claims from `served`. In other queues a wake may stay for long, so a line gets no second one. The first is
-- enough: whoever has taken it, and is not done, has yet to look at the gate, since that is locked here.
create function holdfast.make_room(
    gates uuid[], numbers integer[], served text[], but_not uuid[]
) returns text[] language plpgsql as $$
declare
    queues text[];
    lines  uuid[];
    woken  text[];
begin
    if cardinality(gates) = 0 then
        return '{}';
    end if;
    -- The queues are asked for one by one, so that no more lines are read than are wanted.
    with recursive place (gate, number, queue) as (
        select wanted.gate, wanted.number, first.queue
        from unnest(make_room.gates, make_room.numbers) as wanted (gate, number)
        cross join lateral (
            select line.queue
            from holdfast.lines as line
            where line.state = 2 and line.parked_at = wanted.gate
            order by line.queue
            limit 1
        ) as first
        union all
        select place.gate, place.number, next.queue
        from place
        cross join lateral (
            select line.queue
            from holdfast.lines as line
            where line.state = 2 and line.parked_at = place.gate and line.queue > place.queue
            order by line.queue
            limit 1
        ) as next
    )
    select array_agg(parked.queue), array_agg(parked.id) into queues, lines
    from place
    cross join lateral (
        select line.queue, line.id
        from holdfast.lines as line
        where line.state = 2 and line.parked_at = place.gate and line.queue = place.queue and line.id <> all (but_not)
        order by line.priority desc, line.turn, line.id
        limit place.number
    ) as parked;
    if lines is null then
        return '{}';
    end if;
    if queues <@ served then
        return holdfast.wake(queues, lines);
    end if;
    with added as (
        insert into holdfast.wakes (queue, lines, once)
        select waking.queue, array[waking.line], waking.line
        from unnest(queues, lines) as waking (queue, line)
        where waking.queue <> all (served)
          and not exists (select from holdfast.wakes as before where before.once = waking.line)
        returning queue
    )
    select array_agg(distinct queue) into woken from added;
    return coalesce(woken, '{}') || (
        select holdfast.wake(array_agg(waking.queue), array_agg(waking.line))
        from unnest(queues, lines) as waking (queue, line)
        where waking.queue = any (served)
    );
end
$$;

-- These jobs, which ran in these lines, are completed: a limit has their places again, and an order has no holder. Lines
-- that are parked there are to be opened, as many of each queue as have left. Answers with their queues.
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
        set held = case when gate.kind = 1 then greatest(gate.held - leaving.number, 0) else gate.held end,
            holder = case
                when gate.holder = leaving.first or (leaving.number > 1 and gate.holder = any (jobs)) then null
                else gate.holder
            end
        from unnest(left_gates, left_lines, numbers, firsts) as leaving (gate, line, number, first)
        where gate.id = any (array[leaving.gate]) and (gate.kind in (1, 3)) is true
        returning gate.id, gate.lines > 1 as is_shared, leaving.line, leaving.number
    )
    select
        array_agg(id) filter (where is_shared), array_agg(number) filter (where is_shared),
        array_agg(id) filter (where not is_shared), array_agg(line) filter (where not is_shared)
    into shared, shared_by, lonely, lonely_lines
    from freed;
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
