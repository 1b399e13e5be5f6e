delete from holdfast_failures
where job = ?1 and seq not in (select seq from holdfast_failures where job = ?1 order by seq desc limit ?2)
