"""What a destination of Canal's becomes: sections of a ``shmstore.toml``, files with secrets, and a report of every property."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmstore.cli.canal.configuration import CanalDestination

# Files with secrets, which only their owner reads.
PASSWORD: Final = "password"
PASSWORD_HASH: Final = "clients-password-hash"
QUEUE_PASSWORD: Final = "queue-password"
#: The queues that Canal and we have, and the property that says where each is.
QUEUES: Final = {
    "kafka": "kafka.bootstrap.servers",
    "pulsarmq": "pulsarmq.serverUrl",
    "rabbitmq": "rabbitmq.host",
    "rocketmq": "rocketmq.namesrv.addr",
}
#: The client id under which Canal sends into a queue.
QUEUE_CLIENT: Final = 1001
OPERATIONS: Final = ("insert", "update", "delete", "ddl", "query")

KINDS: Final = {
    "taken over": "Taken over",
    "changed": "Taken over, and different from Canal",
    "left out": "Left out, and what to do instead",
    "unknown": "Nothing here answers to",
    "empty": "Not set in Canal's files",
}


class Outcome(NamedTuple):
    """What became of one property: `kind` is a key of KINDS."""

    kind: str
    name: str
    text: str


class Conversion:
    """A destination on its way into the folder `folder`. `serves`: whether canal's clients connect to it."""

    def __init__(self, source: CanalDestination, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.store = store_name(source.name)
        self.sections: dict[str, dict[str, Any]] = {"source": {}, "serve": {}, "queue": {}}
        self.secrets: dict[str, str] = {}  #: by file name
        self.without: set[str] = set()  #: operations that are left out
        self.remarks: dict[str, str] = {}  #: comments for the file, by the option that they are about
        self.outcomes: list[Outcome] = []
        self.serves = True
        self.rule = ""  #: the property that is being taken over

    def get(self, name: str, default: str = "") -> str:
        """A property, as `CanalDestination.get`."""
        return self.source.get(name, default)

    def put(self, section: str, option: str, value: Any) -> None:
        """Set an option."""
        self.sections[section][option] = value

    def add(self, section: str, option: str, value: str) -> None:
        """Add to an option that is a list."""
        known = self.sections[section].setdefault(option, [])
        if value not in known:
            known.append(value)

    def secret(self, section: str, option: str, file: str, text: str) -> None:
        """Put `text` into a file of its own, which the option names. Raises ValueError where it cannot be in a file of one line."""
        if re.search(r"[\r\n\0]", text) or not text:
            raise ValueError(f"{self.rule} has a line end or a zero byte, or is empty")
        self.secrets[file] = text
        self.put(section, option, str(self.folder / file))

    def begins_before(self) -> None:
        """Say that the producer begins before the tables that it finds."""
        self.put("source", "schema_history", "now")
        self.remarks["schema_history"] = (
            "schema_history = now: rows from before the first start are read with the server's present tables, as Canal does, and checked "
            "against every table map; the producer stops at the first that does not fit. Take the line out after the first start"
        )

    def note(self, kind: str, name: str, text: str) -> None:
        """Say what became of a property."""
        self.outcomes.append(Outcome(kind, name, text))

    def finish(self, mode: str) -> None:
        """Set what Canal does where nothing is set. Raises ValueError where Canal would not start either."""
        source, serve, queue = self.sections.values()
        if "host" not in source:
            raise ValueError(f"canal.instance.master.address is not set for destination {self.source.name!r}")
        for option, value in (("user", "retl"), ("statements", "pass"), ("row_image", "any")):
            source.setdefault(option, value)
        if not self.without.isdisjoint(OPERATIONS):
            source["operations"] = [each for each in OPERATIONS if each not in self.without]
            if not source["operations"]:
                raise ValueError("the filters leave out every kind of change: nothing would be read")
        if "query" not in self.without:
            source.setdefault("rows_query", True)
        if self.serves:
            serve.setdefault("gtids", "off")
        else:
            serve.clear()
        if mode not in QUEUES:
            queue.clear()
            return
        if "brokers" not in queue:
            raise ValueError(f"canal.serverMode is {mode}, and {QUEUES[mode]} is not set")
        if any(word.startswith("admin=") for word in queue.get("set", ())) and "partitions_num" in queue:
            queue["new_partitions"] = queue["partitions_num"]  # without, Canal leaves topics to the broker
        queue.setdefault("format", "canal")
        queue |= {"store": self.store, "subscription": f"canal-{QUEUE_CLIENT}"}


def store_name(destination: str) -> str:
    """Return the name of a destination's store: its own, as far as a store may have it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", destination).lstrip("-.")[:100] or "canal"
