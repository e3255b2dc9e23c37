"""Types of the compiled extension; `consumer/wire/native/entries.pyx` is its source."""

from collections.abc import Callable
from typing import Any

class Entries:
    def __init__(self, table_of: Callable[[bytes], Any], canal: bool, gtids: bool) -> None: ...
    def encode(self, payload: bytes | memoryview, wanted: Callable[[str], bool] | None = None) -> Any: ...
