"""Spark as a reader."""
