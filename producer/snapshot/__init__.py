"""Rows of tables, read while the stream continues."""
