"""Proof that a copy has what its source has."""

from shmstore.producer.verify.copy import ReadableCopy
from shmstore.producer.verify.result import Difference, TableResult, VerifyProgress
from shmstore.producer.verify.server_copy import ServerCopy
from shmstore.producer.verify.verification import Verification

__all__ = ["Difference", "ReadableCopy", "ServerCopy", "TableResult", "Verification", "VerifyProgress"]
