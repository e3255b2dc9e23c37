"""The loop: read, decode, buffer, put."""
