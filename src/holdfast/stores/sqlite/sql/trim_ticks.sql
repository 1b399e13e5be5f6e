delete from holdfast_ticks
where schedule = ?1
  and tick < (select min(tick) from (select tick from holdfast_ticks where schedule = ?1 order by tick desc limit ?2))
