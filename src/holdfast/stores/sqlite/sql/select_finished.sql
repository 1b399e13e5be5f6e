select * from holdfast_jobs where id in (values /*rows*/(?)/*rows*/) and stage > 3
