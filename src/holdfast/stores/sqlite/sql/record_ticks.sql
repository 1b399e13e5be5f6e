insert into holdfast_ticks (schedule, tick, job)
values /*rows*/(?, ?, ?)/*rows*/
on conflict (schedule, tick) do nothing
