"""Public names of a package that are imported when they are first asked for: a command that needs one of them does not load the rest."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def of(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of `package`; `homes`: modules, each with the names that it defines, between spaces."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    names = vars(sys.modules[package])

    def getattr_(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = found = getattr(importlib.import_module(home_of[name]), name)
        return found

    return getattr_, lambda: sorted({*names, *home_of})
