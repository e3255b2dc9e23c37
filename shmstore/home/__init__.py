"""A store's home: the folder that outlives its memory, and one module for each kind of file in it."""
