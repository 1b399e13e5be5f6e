delete from holdfast_lines where id in (values /*rows*/(?)/*rows*/)
