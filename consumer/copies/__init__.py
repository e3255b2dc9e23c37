"""Copies of tables, free of Spark: what brings them up to date with a store's events, the targets that hold them, and reading them again."""
