"""The compiled hot paths of ring and encoding. Without a compiler they are missing, and pure Python does the same."""
