delete from holdfast_gates where seq in (select value from json_each(?))
