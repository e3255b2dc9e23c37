"""A store's changes into message queues of other hosts: Kafka first, others by the same protocol."""
