"""What passes: tables, columns, operations, and rows by conditions, as ``country = 'DE' AND total > 100``.

A condition has one meaning in the stream and in a snapshot: a text is compared exactly, character by character, whatever the column's
collation. Which collation a column has is not in every binlog, and what it makes equal differs between versions of the servers, so no other
rule gives the same rows from a rows event and from a SELECT. All else is compared as the servers do, with NULL as in SQL: three-valued.
"""

OPERATIONS = ("insert", "update", "delete", "ddl", "query")
