"""Bytes of one binlog event -> what is in it. No I/O but for local files."""
