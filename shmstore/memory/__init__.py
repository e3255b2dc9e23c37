"""The segment: its bytes, its mapping, and what processes agree with (locks, semaphores, memory order)."""
