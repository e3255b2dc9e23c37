"""Mutants: the store's code with one line or fence in the wrong place. A scenario must catch its own, or it proves nothing."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Collection
from typing import Any

import pytest

Change = tuple[Any, str, str, str]  # module or class, function, old text, new text


def mutate(patch: pytest.MonkeyPatch, *changes: Change) -> None:
    """Replace `old` by `new` in the source of each function, wherever the store uses it."""
    for owner, name, old, new in changes:
        function = inspect.getattr_static(owner, name)
        source = getattr(function, "mutated", None) or inspect.getsource(function)
        assert source.count(old) == 1, f"{name} has {source.count(old)} of {old!r}"
        module = inspect.getmodule(function)
        scope: dict[str, Any] = {}
        head, body = "from __future__ import annotations\nif True:\n", source.replace(old, new)
        body = body if body[0] == " " else textwrap.indent(body, " ")
        exec(compile(head + body, module.__file__, "exec"), module.__dict__, scope)
        scope[name].mutated = source.replace(old, new)
        patch.setattr(owner, name, scope[name])
        for user in [m for n, m in sys.modules.items() if n.startswith("shmstore.") and vars(m).get(name) is function]:
            patch.setattr(user, name, scope[name])


def mutants(*each: tuple[Any, ...], long: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test with each of these `changes`; the name of each comes first. Those in `long` are not run in CI."""
    params = [pytest.param(changes, id=name, marks=[pytest.mark.long] * (name in long)) for name, *changes in each]
    return pytest.mark.parametrize("changes", params)
