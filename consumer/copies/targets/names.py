"""Copies that have names, ``database.table``, in a database or a catalog."""

from __future__ import annotations

from shmstore.consumer.copies.change_reduction import OURS, CannotCopy


def next_name(path: str, number: int) -> str:
    """Return the name of the table whose rows replace those of the copy `path`: in the same database."""
    schema, dot, _ = path.rpartition(".")
    return f"{schema}{dot}{OURS}next_{number:x}"


class NamedCopies:
    """The part of a `Target` that gives copies their names."""

    def named(self, name: str) -> str:
        """`Target.named`."""
        if "." in name or name.lower().startswith(OURS):
            why = (
                "has a dot, which separates schema and table"
                if "." in name
                else f"begins with {OURS}, as tables of replicate's own do"
            )
            raise CannotCopy(f"the name {name!r} {why}: copies in a database or a catalog cannot be called so")
        return name

    def unnamed(self, part: str) -> str:
        """`Target.unnamed`."""
        return part

    def next_path(self, path: str, number: int) -> str:
        """A table in the same database."""
        return next_name(path, number)

    def aside_path(self, path: str) -> str:
        """A table in the same database."""
        schema, dot, table = path.rpartition(".")
        return f"{schema}{dot}{OURS}deleted_{table}"
