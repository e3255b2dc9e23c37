"""put, get, ack and rollback as arithmetic on a buffer."""
