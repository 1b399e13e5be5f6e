delete from holdfast_lines where seq in (select value from json_each(?))
