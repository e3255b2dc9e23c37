"""The bytes of Canal's protocol and its states. No I/O."""
