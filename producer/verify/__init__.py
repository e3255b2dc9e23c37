"""Proof that a copy has what its source has."""

from shmstore.producer.verify.server_copy import ServerCopy
from shmstore.producer.verify.verification import Copy, Difference, Found, Progress, Verification

__all__ = ["Copy", "Difference", "Found", "Progress", "ServerCopy", "Verification"]
