delete from holdfast_workers where id = ?
