"""What is asked of stores from outside: whether they make progress, their counters for Prometheus, and rows counted by table."""
