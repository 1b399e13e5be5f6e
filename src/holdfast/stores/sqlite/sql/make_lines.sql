insert into holdfast_lines (id, queue, priority, gates, state, parked_at, turn, tenant)
values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?)/*rows*/
