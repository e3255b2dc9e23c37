"""What serves a store to others."""
