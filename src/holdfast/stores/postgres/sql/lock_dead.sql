-- Dead workers that may still hold something, so that a rescue that was cut short resumes.
select id from holdfast.workers where dead_at is not null and not is_empty order by id for update
