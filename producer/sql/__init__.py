"""What a DDL does to tables: SQL text -> tokens -> changes."""
