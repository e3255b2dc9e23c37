"""Where a stream begins."""
