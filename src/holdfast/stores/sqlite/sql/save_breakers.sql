insert into holdfast_breakers (name, record)
values /*rows*/(?, ?)/*rows*/
on conflict (name) do update set record = excluded.record
