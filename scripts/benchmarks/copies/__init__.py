"""Copies of tables, without Spark."""
