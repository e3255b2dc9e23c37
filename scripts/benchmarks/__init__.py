"""Benchmarks of the project beside its peers."""
