"""The store: a ring in named shared memory, its waiting, its roles and its subscriptions."""
