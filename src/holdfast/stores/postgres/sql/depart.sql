delete from holdfast.workers where id = $1
