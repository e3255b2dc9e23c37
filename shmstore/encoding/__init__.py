"""Events as bytes (MessagePack), and as Arrow."""
