delete from holdfast_progress where job in (values /*rows*/(?)/*rows*/)
