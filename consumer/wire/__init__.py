"""The Canal client/server protocol."""
