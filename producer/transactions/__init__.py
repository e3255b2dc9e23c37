"""Events -> whole transactions, encoded."""
