"""A target of your own: the copy of each table as a JSON file, for ``shmstore replicate STORE --to json:FOLDER``.

It shows what a target is (`shmstore.consumer.copies.target`): it does what the steps of a batch say, and keeps each step and its marks together, here in
one rename. It reads a whole copy to change it, so it is for small tables. A package brings it in by an entry point:

    [project.entry-points."shmstore.targets"]
    json = "json_target:open_target"
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shmstore import TableSchema
from shmstore.atomic_file import replace
from shmstore.consumer.copies.change_reduction import Alter, Columns, CopyDiffers, CopyRefuses, Empty, Merge, Replace, Step
from shmstore.consumer.copies.kinds import OpenedTarget, TargetOptions
from shmstore.consumer.copies.targets.folders import Folders
from shmstore.sql.names import folded


class JsonTable:
    """One copy: the file ``rows.json`` in the folder `path`, with its columns, its marks, and its rows by their keys."""

    def __init__(self, path: str, name: str) -> None:
        self._file, self._name = Path(path, "rows.json"), name
        self._held: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    @property
    def exists(self) -> bool:
        return "columns" in self._held

    @property
    def keeps_history(self) -> bool:
        return False

    @property
    def columns(self) -> Columns:
        return {}  # what is not known is read again after an ALTER that the producer has no definitions for

    def mark(self, name: str) -> int:
        return int(self._held.get("marks", {}).get(name, -1))

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        self._keep(list(schema.names), {}, marks)

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        columns, rows = list(self._held.get("columns", [])), dict(self._held.get("rows", {}))
        if isinstance(step, Merge):
            if rows and set(columns) != set(step.schema.names):
                raise CopyDiffers(f"rows of {self._name} have other columns than its copy: {', '.join(step.schema.names)}")
            columns = list(step.schema.names)
            for key in step.deletes.to_pylist():
                rows.pop(_text([key[name] for name in step.keys]), None)
            for row in step.upserts.to_pylist():
                rows[_text([row[name] for name in step.keys])] = row
        elif not self.exists:
            return  # changed before it was ever filled
        elif isinstance(step, Empty):
            rows = {}
        elif isinstance(step, Replace):
            other = JsonTable(step.path, self._name)._held
            columns, rows = other.get("columns", list(step.schema.names)), other.get("rows", {})
        elif isinstance(step, Alter):
            for change in step.changes:
                if not change.name or change.default is not None or change.column is not None:
                    raise CopyDiffers(f"the columns of {self._name} changed, and with them values")  # so its rows are read again
            renamed = {folded(change.name): change.to for change in step.changes}  # to nothing where it is dropped
            called = {name: renamed.get(folded(name), name) for name in columns}
            columns = [name for name in called.values() if name]
            rows = {key: {called[name]: value for name, value in row.items() if called[name]} for key, row in rows.items()}
        elif step is not None:
            raise CopyRefuses(f"a copy in JSON keeps no history: leave out --history for {self._name}")
        self._keep(columns, rows, marks)

    def remove(self, marks: Mapping[str, int]) -> None:
        if self.exists and marks:
            self._write({"marks": dict(marks)})  # a copy that was removed says how far it was
        elif self.exists:
            shutil.rmtree(self._file.parent, ignore_errors=True)
            self._held = {}

    def _keep(self, columns: list[str], rows: dict[str, Any], marks: Mapping[str, int]) -> None:
        self._write({"columns": columns, "marks": {**self._held.get("marks", {}), **marks}, "rows": rows})

    def _write(self, held: dict[str, Any]) -> None:
        """Write all of it, and rename: rows and marks, both or neither."""
        replace(
            self._file,
            lambda path: path.write_text(json.dumps(held, default=str)),
            f"copy of {self._name}",
            "choose another folder",
        )
        self._held = held


def _text(key: Sequence[Any]) -> str:
    return json.dumps(key, default=str)


def open_target(place: str, options: TargetOptions) -> OpenedTarget:
    """What the entry point names: the target, and where in it the copy of a table is."""
    options.only("json")
    folder = str(Path(place.removeprefix("//")).absolute())
    return OpenedTarget(Folders(JsonTable), f"{folder}/{{database}}/{{table}}", f"json:{folder}")
