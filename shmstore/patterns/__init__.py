"""Matching names with patterns of strangers."""
