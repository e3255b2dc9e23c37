"""The store as a source of Spark queries."""
