"""SQL as MySQL and MariaDB have it, read in one way: the producer follows tables with it, consumers say what a DDL is about and does."""
