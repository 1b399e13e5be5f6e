select holdfast.recount($1)
