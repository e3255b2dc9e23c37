"""The store: a ring beside other ways between two processes, and its log."""
