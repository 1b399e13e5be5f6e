select min(turn) from holdfast_lines where state = 1 and queue = ? and priority = ?
