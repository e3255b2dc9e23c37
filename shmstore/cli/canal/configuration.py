"""Canal's configuration folder: ``canal.properties``, and for each destination a folder with ``instance.properties``.

A property of a destination is looked up as Canal does: in the environment, in its own file, in ``canal.properties``. ``${name:default}`` in a
value is what that lookup says of `name`; where nothing has it, it is empty. Values are without blanks at their ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shmstore.cli.canal.java_properties import parse_properties, text_of

SERVER_FILE: Final = "canal.properties"
INSTANCE_FILE: Final = "instance.properties"
_MOST_CHARACTERS: Final = 1 << 16  # of a value, placeholders replaced
_DEEPEST: Final = 20
_MOST_PLACEHOLDERS: Final = 1000  # in one value, and in what they lead to


class CanalDestination:
    """One destination: its properties, each from the first place that has it. Raises ValueError where a file cannot be read."""

    def __init__(self, folder: Path, name: str, server: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self.folder, self.name = folder, name
        instance = read_properties(folder / name / INSTANCE_FILE)
        self._values = {**server, **instance, "canal.instance.destination": name}
        #: The properties of both files, in their order; of the environment those that Canal's names begin like.
        self.names = list(dict.fromkeys([*server, *instance, *(key for key in environ if key.startswith("canal."))]))
        self._values |= {key: environ[key] for key in environ if environ[key].strip()}
        self._replaced = 0
        self.undefined: dict[str, str] = {}  #: placeholders that nothing defines, each with a property that has it

    def get(self, name: str, default: str = "") -> str:
        """Return a property, placeholders replaced; `default` where it is not set or empty. Raises ValueError."""
        self._replaced = 0
        return self._resolved(name, self._values.get(name, ""), (name,)) or default

    def _resolved(self, name: str, text: str, within: tuple[str, ...]) -> str:
        parts, at = [], 0
        while (begin := text.find("${", at)) >= 0 and (end := _closing(text, begin)) >= 0:
            parts += [text[at:begin], self._placeholder(name, text[begin + 2 : end], within)]
            at = end + 1
        found = "".join([*parts, text[at:]]).strip()
        if len(found) > _MOST_CHARACTERS:
            raise ValueError(f"{name} has more than {_MOST_CHARACTERS} characters")
        return found

    def _placeholder(self, name: str, text: str, within: tuple[str, ...]) -> str:
        wanted, colon, default = text.partition(":")
        wanted = wanted.strip()
        if wanted in within or len(within) > _DEEPEST:
            raise ValueError(f"{name}: the placeholder ${{{wanted}}} leads back to itself")
        self._replaced += 1
        if self._replaced > _MOST_PLACEHOLDERS:
            raise ValueError(f"{name} leads to more than {_MOST_PLACEHOLDERS} placeholders")
        inner = (*within, wanted)
        value = self._resolved(name, self._values.get(wanted, ""), inner) or self._resolved(name, default, inner)
        if not value and not colon and wanted not in self._values:
            self.undefined.setdefault(wanted, name)
        return value


def _closing(text: str, begin: int) -> int:
    """Where the placeholder that begins there ends; -1 where it does not."""
    depth, at = 0, begin
    while at < len(text):
        if text.startswith("${", at):
            depth, at = depth + 1, at + 2
            continue
        if text[at] == "}":
            depth -= 1
            if not depth:
                return at
        at += 1
    return -1


def read_properties(path: Path) -> dict[str, str]:
    """Return the properties in a file. Raises ValueError, which names the file."""
    try:
        with open(path, "rb") as file:
            return parse_properties(text_of(file.read((1 << 20) + 1)))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_folder(folder: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> list[CanalDestination]:
    """Return the destinations in Canal's folder ``conf``, by name. Raises ValueError."""
    path = Path(folder)
    if not (path / SERVER_FILE).is_file():
        raise ValueError(f"{path} has no {SERVER_FILE}: name Canal's folder conf, or a copy of it")
    server = read_properties(path / SERVER_FILE)
    names = sorted(each.parent.name for each in path.glob(f"*/{INSTANCE_FILE}"))
    if not names:
        raise ValueError(f"{path} has no folder with {INSTANCE_FILE}: each destination has one, as example/{INSTANCE_FILE}")
    return [CanalDestination(path, name, server, os.environ if environ is None else environ) for name in names]
