"""The tables as they were at a position."""
