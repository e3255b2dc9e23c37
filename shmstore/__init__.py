"""One binlog connection in, many independent readers out: the store in shared memory."""
