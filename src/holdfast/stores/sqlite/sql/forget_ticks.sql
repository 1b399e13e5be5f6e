delete from holdfast_ticks where schedule = ?
