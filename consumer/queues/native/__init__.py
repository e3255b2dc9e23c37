"""The compiled maker of messages."""
