"""The executing side: a supervisor and its child processes, or an embedded worker in the caller's own process."""
