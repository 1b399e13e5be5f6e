-- Whoever settles locks the gates that jobs leave while they are changed, not before: to lock a row costs more than to
-- change it.
--
-- As before, gates are locked after the jobs, in the order of their ids, which is that of `leaving`: each is looked up for
-- one row of that. Which lines are parked is asked after that: until then, others may still park lines there. A gate that
-- one line leads through has been left by jobs of that line.
create or replace function holdfast.leave_gates(jobs uuid[], lines uuid[]) returns text[] language plpgsql as $$
declare
    served       text[];
    shared       uuid[];
    shared_by    integer[];
    lonely       uuid[];
    lonely_lines uuid[];
    woken        text[];
begin
    with leaving as materialized (
        select
            through.gate, count(*)::integer as number, (array_agg(mine.job))[1] as first,
            (array_agg(mine.line))[1] as line, min(through.queue) as queue
        from unnest(jobs, lines) as mine (job, line)
        cross join lateral (
            select queue, unnest(gates) as gate from holdfast.lines where id = any (array[mine.line])
        ) as through
        group by through.gate
        order by through.gate
    ),
    freed as (
        update holdfast.gates as gate
        set held = greatest(gate.held - leaving.number, 0),
            -- Of those that have left through one, mostly there is no other than the first.
            holder = case
                when gate.holder = leaving.first or (leaving.number > 1 and gate.holder = any (jobs)) then null
                else gate.holder
            end
        from leaving
        -- "is true" hides other indexes from the planner: that of names has the kind too.
        where gate.id = any (array[leaving.gate]) and (gate.kind in (1, 3)) is true
        returning
            gate.id, gate.lines > 1 as is_shared, leaving.line, leaving.number, leaving.queue,
            gate.kind = 1 or (gate.held = 0 and gate.holder is null) as has_room
    )
    select
        array_agg(id) filter (where has_room and is_shared), array_agg(number) filter (where has_room and is_shared),
        array_agg(id) filter (where has_room and not is_shared),
        array_agg(line) filter (where has_room and not is_shared),
        array_agg(distinct queue)
    into shared, shared_by, lonely, lonely_lines, served
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
    return coalesce(woken, '{}');
end
$$;
