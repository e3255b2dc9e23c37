"""The compiled encoder of entries."""
