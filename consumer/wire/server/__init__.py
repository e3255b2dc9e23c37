"""Sockets, waiting and time around the protocol and the sessions."""
