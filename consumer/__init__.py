"""Readers out: Python, Spark, the Canal wire protocol."""
