-- $1 ids, $2 how many attempts to keep of each.
delete from holdfast.failures
where seq = any (array(
    select seq
    from (
        select seq, row_number() over (partition by job order by seq desc) as age
        from holdfast.failures
        where job = any ($1::uuid[])
    ) as attempts
    where age > $2
))
