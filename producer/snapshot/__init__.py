"""Rows of tables, read while the stream goes on."""
