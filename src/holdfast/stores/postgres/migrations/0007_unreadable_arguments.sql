-- Whether an argument has this value, of this kind: 'null', 'boolean', 'string' or 'number'. Not if the arguments can't be
-- read: they may have been enqueued before anybody looked at them. Slower than to look into them without this care.
create function holdfast.has_argument(args text, path text[], kind text, wanted text) returns boolean
    language plpgsql immutable
as $$
declare
    found json;
begin
    found := holdfast.readable(args) #> path;
    if json_typeof(found) is distinct from kind then
        return false;
    end if;
    return case kind
        when 'null' then true
        when 'number' then found::text::numeric = wanted::numeric
        else found #>> '{}' = wanted
    end;
exception
    when data_exception or program_limit_exceeded then
        return false;
end
$$;

-- Raise an error if the arguments of a job are not an object. The values are not shown: they may be secret.
create function holdfast.check_arguments(listed json) returns void language plpgsql as $$
declare
    new holdfast.new_job;
begin
    foreach new in array array(select each from json_populate_recordset(null::holdfast.new_job, listed) as each) loop
        begin
            continue when json_typeof(new.args::json) = 'object';
        exception
            when data_exception or program_limit_exceeded then
                null; -- it is no JSON at all
        end;
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('holdfast.enqueue: the args of job %s, task %s, are not an object in JSON', new.id, new.task),
            hint = 'Pass the arguments by name, as text: {"order_id": 7}.';
    end loop;
end
$$;

-- Enqueue jobs in the transaction that is open, and answer in JSON.
--
-- Jobs are a list of objects. Each needs id (a UUIDv7), task, queue and args (an object in JSON, as text); the other
-- fields are those of holdfast.new_job. No id may stand there twice. The options are an object, none of which must be given:
--     sizes         cuts the jobs into calls: so many for each. A call is done whole or not at all. By default, one call.
--     instance      the instance that the caller means
--     is_checked    the caller knows that all args are objects in JSON
--     is_plain      no job has a key, nor an id that might be there already
--     has_repeats   some ids might be there already
--     is_admitted   the caller knows that there is room
--     is_tight      the caller knows that there may be little room, whatever others have counted
--     is_locking    wait for other producers, to keep bounds exactly; otherwise they may be passed by what others
--                   enqueue at the same time
--     declared      {queue: [bound, bound of scheduled jobs]} that the caller's code declares
--     lines         [{queue, lines, priorities, rules}], the lines that jobs with limits stand in, as Holdfast's own
--                   producers make them, some fifty in each
--     lock_timeout  how many milliseconds to wait for a transaction that is using one of the keys
--     now           the time, for tests
-- The answer is an object.
--     found         {position: id} for each job that was there before
--     refused       {call: {"because": "room" | "key" | "id", ...}}
--     queues        {queue: {waiting, scheduled, bound, scheduled_bound}}, where it was looked at
-- or {"because": "instance"}. A refusal raises nothing, so that the caller's transaction stays usable; but args that are
-- not an object in JSON, which no task could take, are an error.
create or replace function holdfast.enqueue(jobs text, options text default '{}') returns text language plpgsql
    set search_path = pg_catalog, pg_temp
    -- On the caller's connection nobody else would see to it that a small table's plan is not kept for a large one.
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set jit = off
as $$
declare
    asked       constant json    := options::json;
    moment      constant bigint  := coalesce((asked ->> 'now')::bigint, holdfast.now());
    is_plain    constant boolean := coalesce((asked ->> 'is_plain')::boolean, false);
    is_admitted constant boolean := coalesce((asked ->> 'is_admitted')::boolean, false);
    is_locking  constant boolean := coalesce((asked ->> 'is_locking')::boolean, false);
    is_tight    constant boolean := coalesce((asked ->> 'is_tight')::boolean, false);
    has_repeats constant boolean := coalesce((asked ->> 'has_repeats')::boolean, true) and not is_plain;
    listed      constant json    := jobs::json; -- apart from the options, since each look into JSON reads all of it
    walked     holdfast.new_job[];
    must_walk  boolean   := not is_plain;
    taken      jsonb     := '{}'; -- {job: how many of its keys it has}
    sizes      integer[] := array(select json_array_elements_text(asked -> 'sizes')::integer);
    queues     jsonb     := '{}'; -- how full they are, with what was admitted so far
    base       jsonb;             -- the same with what no bound refuses of the call at hand
    room       jsonb;             -- the same with all of it
    matched    uuid[]    := '{}'; -- jobs that were there before, and
    spots      integer[] := '{}'; -- in whose stead
    kept       integer;           -- how many of them stand, whatever becomes of the call at hand
    refused    jsonb     := '{}';
    is_skipped boolean[] := '{}'; -- whether the job at a position is not inserted
    first      integer   := 1;
    spot       integer;
    job        holdfast.new_job;
    counted_as text;
    existing   uuid;
    inserted   integer;
    queue      record;
begin
    if asked ->> 'instance' <> (select id::text from holdfast.instance) then
        return '{"because": "instance"}';
    end if;
    if not coalesce((asked ->> 'is_checked')::boolean, false) then
        perform holdfast.check_arguments(listed);
    end if;
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if not is_plain or not is_admitted then
        walked := array(select new from json_populate_recordset(null::holdfast.new_job, listed) as new);
    end if;

    if not is_admitted then
        for queue in select new.queue as name, count(*) as more from unnest(walked) as new group by 1 order by 1 loop
            room := to_jsonb(holdfast.look_at_queue(queue.name, queue.more, asked -> 'declared', is_locking, is_tight));
            queues := queues || jsonb_build_object(queue.name, room);
            must_walk := must_walk or (room ->> 'is_certain')::boolean;
        end loop;
    end if;

    if asked ->> 'lock_timeout' is not null then
        perform set_config('lock_timeout', asked ->> 'lock_timeout', true);
    end if;
    -- Mostly every key is new. Then one statement takes them all.
    if must_walk and not has_repeats then
        taken := holdfast.take_new_keys(walked, moment);
        must_walk := queues <> '{}' or (
            select count(new.idempotency_key) + count(new.unique_key) > (select sum(value::bigint) from jsonb_each_text(taken))
                or (taken = '{}' and count(new.idempotency_key) + count(new.unique_key) > 0)
            from unnest(walked) as new
        );
    end if;

    if must_walk and sizes = '{}' then
        sizes := array[cardinality(walked)];
    end if;
    if must_walk then
        is_skipped := array_fill(false, array[cardinality(walked)]);
    end if;
    for number in 1 .. case when must_walk then cardinality(sizes) else 0 end loop
        base := queues;
        room := queues;
        kept := cardinality(matched);
        spot := first - 1;
        begin
            foreach job in array walked[first : first + sizes[number] - 1] loop
                spot := spot + 1;
                existing := case when job.is_repeat then holdfast.resolve_id(job) end;
                if existing is null and num_nonnulls(job.idempotency_key, job.unique_key) > 0 then
                    existing := holdfast.resolve_keys(job, moment, coalesce((taken ->> job.id::text)::integer, 0));
                end if;
                if existing is not null then
                    matched := array_append(matched, existing);
                    spots := array_append(spots, spot);
                    is_skipped[spot] := true;
                elsif room ? job.queue then
                    counted_as := case when coalesce(job.at, moment + job.delay) > moment then 'scheduled' else 'waiting' end;
                    room := jsonb_set(
                        room, array[job.queue, counted_as], to_jsonb((room -> job.queue ->> counted_as)::bigint + 1)
                    );
                    if job.is_exempt then
                        base := jsonb_set(
                            base, array[job.queue, counted_as], to_jsonb((base -> job.queue ->> counted_as)::bigint + 1)
                        );
                    end if;
                end if;
            end loop;
            perform holdfast.check_room(base, room);
            queues := room;
        exception when sqlstate 'HF001' then
            refused := refused || jsonb_build_object(number - 1, sqlerrm::jsonb);
            if taken <> '{}' then
                delete from holdfast.keys as k
                where k.job = any (array(select id from unnest(walked[first : first + sizes[number] - 1])));
            end if;
            matched := matched[:kept];
            spots := spots[:kept];
            for refused_spot in first .. first + sizes[number] - 1 loop
                is_skipped[refused_spot] := true;
            end loop;
        end;
        first := first + sizes[number];
    end loop;

    inserted := holdfast.insert_jobs(listed, moment, is_skipped, asked -> 'lines');
    if has_repeats and inserted < (select count(*) from unnest(is_skipped) as s where not s) then
        -- It may be another job. Who tries again finds it.
        raise exception using errcode = '40001', message = 'a job with the same id was enqueued in the meantime';
    end if;

    for queue in select key as name, value as depth from jsonb_each(queues) order by 1 loop
        if is_locking and (queue.depth ->> 'is_certain')::boolean then
            perform holdfast.publish_depth(
                queue.name,
                (queue.depth ->> 'waiting')::bigint,
                (queue.depth ->> 'scheduled')::bigint,
                (queue.depth ->> 'measured_in')::bigint
            );
        end if;
    end loop;
    return json_build_object(
        'found', coalesce(
            (select json_object_agg(s - 1, m) from unnest(spots, matched) as found (s, m)), '{}'
        ),
        'refused', refused, 'queues', queues
    );
end
$$;
