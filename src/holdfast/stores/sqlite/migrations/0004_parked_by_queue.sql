-- If a gate has room, lines of every queue are opened: perhaps nobody claims from the one whose turn it is.
drop index holdfast_parked_lines;
create index holdfast_parked_lines on holdfast_lines (parked_at, queue, priority desc, turn) where state = 2;
