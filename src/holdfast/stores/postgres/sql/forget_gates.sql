delete from holdfast.gates where id = any ($1::uuid[])
