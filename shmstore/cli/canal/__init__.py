"""Alibaba's Canal, as its users have it: its configuration and its clients' cursors, read to be taken over."""
