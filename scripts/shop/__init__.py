"""The shop behind ``scripts/demo``: a live load, three readers of one ring, and the proof that all hold the same tables."""
