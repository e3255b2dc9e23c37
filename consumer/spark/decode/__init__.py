"""Encoded events -> Arrow, in the executors."""
