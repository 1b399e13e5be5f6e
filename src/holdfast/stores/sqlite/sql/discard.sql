delete from holdfast_jobs where id in (values /*rows*/(?)/*rows*/)
