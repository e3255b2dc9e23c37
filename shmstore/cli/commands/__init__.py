"""What `shmstore` can be asked to do: a module for each command, or for a few that belong together, with options and action."""
