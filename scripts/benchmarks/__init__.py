"""Benchmarks of the project and its peers."""
