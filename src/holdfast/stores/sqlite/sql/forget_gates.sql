delete from holdfast_gates where id in (values /*rows*/(?)/*rows*/)
