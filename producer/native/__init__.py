"""The compiled decoder. Without a compiler it is missing, and pure Python does the same."""
