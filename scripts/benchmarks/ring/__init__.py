"""The store: a ring next to other ways between two processes, and its log."""
