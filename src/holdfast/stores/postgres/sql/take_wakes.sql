-- Lines that somebody has put jobs into, or made jobs ready in; not those that another claimer is at.
-- $1 queue, $2 how many.
delete from holdfast.wakes
where ctid = any (array(
    select ctid from holdfast.wakes where queue = $1 order by seq limit $2 for update skip locked
))
-- If the disk forgets that they were taken, they are taken again.
returning seq, line, priority, rule, set_config('synchronous_commit', 'off', true)
