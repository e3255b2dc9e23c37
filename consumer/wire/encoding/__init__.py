"""Stored events -> the bytes of Canal's Entry."""
