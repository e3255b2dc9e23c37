"""The `shmstore` command: the one place that knows all three packages."""
