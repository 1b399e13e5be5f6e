select json_group_array(json_array(k.task, k.kind, k.key, hex(k.job), hex(k.fingerprint), k.window_until, k.expires_at))
from (values /*rows*/(?, ?, ?)/*rows*/) as wanted
cross join holdfast_keys as k on k.task = wanted.column1 and k.kind = wanted.column2 and k.key = wanted.column3
