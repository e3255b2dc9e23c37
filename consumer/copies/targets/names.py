"""Copies that have names, ``database.table``, in a database or a catalog."""

from __future__ import annotations

from shmstore.consumer.copies.change_reduction import OURS, CannotCopy


def part_of_name(name: str) -> str:
    """Return `name` as a part of such a name (`Target.named`). Raises `CannotCopy`."""
    if "." in name or name.lower().startswith(OURS):
        why = (
            "has a dot, which separates schema and table"
            if "." in name
            else f"begins with {OURS}, as tables of replicate's own do"
        )
        raise CannotCopy(f"the name {name!r} {why}: copies in a database or a catalog cannot be called so")
    return name


def aside_name(path: str) -> str:
    """Return the name of the table that is kept aside of the copy `path` (`Target.aside_path`): in the same database."""
    schema, dot, table = path.rpartition(".")
    return f"{schema}{dot}{OURS}deleted_{table}"


def next_name(path: str, number: int) -> str:
    """Return the name of the table whose rows replace those of the copy `path` (`Target.next_path`): in the same database."""
    schema, dot, _ = path.rpartition(".")
    return f"{schema}{dot}{OURS}next_{number:x}"
