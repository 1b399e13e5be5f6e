delete from holdfast_failures where job in (values /*rows*/(?)/*rows*/)
