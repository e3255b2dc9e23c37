"""Bytes of one column value -> Python."""
