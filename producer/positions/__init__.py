"""Where a transaction ends in a binlog: asked of the server, or read for, up to an offset, a time or a GTID set."""
