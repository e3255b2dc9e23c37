"""Proof that a copy has what its source has."""

from shmstore.producer.verify.server_copy import ServerCopy
from shmstore.producer.verify.verification import Difference, ReadableCopy, TableResult, Verification, VerifyProgress

__all__ = ["Difference", "ReadableCopy", "ServerCopy", "TableResult", "Verification", "VerifyProgress"]
