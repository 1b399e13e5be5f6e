"""`holdfast worker`: a supervisor that runs no user code, and the child processes that do."""
