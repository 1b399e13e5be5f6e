"""Running jobs: what a child process of `holdfast worker` and an embedded worker have in common."""
