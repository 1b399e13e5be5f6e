select id from holdfast.jobs where id = any ($1::uuid[])
