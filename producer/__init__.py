"""MySQL and MariaDB in: connects as a replica, decodes the binlog, and puts events into a store."""
