"""Copies in databases: PostgreSQL, MariaDB and MySQL, SQLite. Every batch is one transaction over all of them.

target ── table ── dialect: postgresql, mysql, sqlite
   └────────┴───── database: one connection, its transactions and errors
"""
