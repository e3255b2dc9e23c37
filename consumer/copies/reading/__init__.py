"""Copies of tables, to be read again: whatever format and place they have, their rows come in stored form."""
