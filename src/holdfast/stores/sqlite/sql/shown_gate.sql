-- A gate, with ids instead of numbers.
select json_group_array(json_array(
    hex(id), kind, name, key, declared, override, per, is_blocking, held,
    (select hex(job.id) from holdfast_jobs as job where job.seq = gate.holder),
    json(log), next_at, turn, lines
))
from holdfast_gates as gate where id = ?
