"""What Spark, and the libraries in its JVM, say of one copy: a refusal, or damaged files. What they say of anything else ends the query.

pyspark has exceptions of its own for some of Java's classes (an IllegalArgumentException is one), and `Py4JJavaError` for all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, UnsupportedOperationException

from shmstore.consumer.copies.change_reduction import CopyDamaged, CopyRefuses

JAVA_ERRORS: Final = (PySparkException, Py4JJavaError)
#: What a REST catalog says of a request that it cannot understand, such as one with a name that it cannot have.
BAD_REQUEST: Final = re.compile(r"iceberg\.exceptions\.(?:BadRequest|UnprocessableEntity)Exception")
_INVALID: Final = (AnalysisException, IllegalArgumentException, UnsupportedOperationException)
# a table, or a file of it, that is not there; files that hold something else
_DAMAGED: Final = re.compile(
    r"TABLE_OR_VIEW_NOT_FOUND|DELTA_TABLE_NOT_FOUND|FAILED_READ_FILE\.FILE_NOT_EXIST|is not a Parquet file|ChecksumException"
    r"|iceberg\.exceptions\.(?:NoSuchTableException|NotFoundException)|Metadata file for version \d+ is missing"
    r"|InvalidAvroMagicException|Failed to read file[\s\S]*Json\w+Exception"
)


def is_refusal(error: BaseException) -> bool:
    """Whether what was asked for cannot be, however often it is tried."""
    return isinstance(error, _INVALID) or bool(BAD_REQUEST.search(str(error)))


def first_line(error: BaseException) -> str:
    """What an error of Java says, without its stack."""
    return (str(getattr(error, "java_exception", error)).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def of_one_copy(path: str, name: str) -> Iterator[None]:
    """Raise `CopyDamaged` where files of the copy `path` of `name` are missing, or no files of such a table, and `CopyRefuses` where it cannot be
    given what it was."""
    try:
        yield
    except JAVA_ERRORS as error:
        if _DAMAGED.search(str(error)):
            raise CopyDamaged(f"the copy {path} of {name} was removed, or is damaged: {first_line(error)}") from error
        if is_refusal(error):
            raise CopyRefuses(f"{type(error).__name__}: {first_line(error)}") from error
        raise
