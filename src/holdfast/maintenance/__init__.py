"""What must happen beside the jobs, whoever does it: one file and one loop each. Any number of them may run at once."""
