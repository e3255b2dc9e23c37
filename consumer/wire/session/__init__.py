"""One client's reading of one store. No socket."""
