"""Proof that a copy has what its source has."""
