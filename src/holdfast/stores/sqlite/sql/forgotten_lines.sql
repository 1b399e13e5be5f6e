-- Of the next so many lines, those that are closed and in which no job stood that is known; and how far that went.
select
    max(seq),
    count(*),
    json_group_array(json_array(hex(id), queue, priority, hex(gates), state, '', turn, hex(tenant))) filter (
        where state = 0 and not exists (select 1 from holdfast_jobs where line = each.id)
    )
from (select * from holdfast_lines where seq > ? order by seq limit ?) as each
