"""Fixtures of the tests of copies that Spark keeps: those of the other copies."""

from tests.consumer.copies.conftest import nothing_aside, versions

__all__ = ["nothing_aside", "versions"]
