"""What holds copies: a module for each kind. `shmstore.consumer.copies.target` is what they all are."""
