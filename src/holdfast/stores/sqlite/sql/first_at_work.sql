-- Of a line's jobs that are in a worker's hands, the one that runs, or is next.
select id from holdfast_jobs
where stage = 3 and line = (select +seq from holdfast_lines where id = ?)
order by lane, place
limit 1
