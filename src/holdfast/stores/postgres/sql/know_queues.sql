insert into holdfast.queues (name) select unnest($1::text[]) order by 1 on conflict (name) do nothing
