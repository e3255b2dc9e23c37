"""Copies of tables, kept up to date by one streaming query."""
