"""SQL as MySQL and MariaDB have it, as far as producer and readers both must know it."""
