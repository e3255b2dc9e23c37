"""Everything that touches a server's socket."""
