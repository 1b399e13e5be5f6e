select * from holdfast.jobs where id = any ($1::uuid[]) and (stage > 3) is true
