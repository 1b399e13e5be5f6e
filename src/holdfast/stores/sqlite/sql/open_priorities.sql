select distinct priority from holdfast_lines where state = 1 and queue = ?
