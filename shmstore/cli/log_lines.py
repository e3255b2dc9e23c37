"""What a command says of its work, on stderr: lines for people, or JSON for what collects logs."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

from shmstore.units import TextLines, printable

LEVELS = ("debug", "info", "warning", "error")


class JsonLines(logging.Formatter):
    """A JSON document for each record, on one line: time (ISO 8601, UTC), level, logger, message, and error, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # What does not print is escaped as JSON does it, so that it reads back: also what JSON itself would let pass.
        return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in json.dumps(line, ensure_ascii=False))


def show(options: argparse.Namespace) -> None:
    """Write the log to stderr, as the options of `cli.options` say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if options.log_format == "json" else TextLines())
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])


def say(message: str, level: int = logging.INFO) -> None:
    """Print `message` as one line on stderr, in the form of the log."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        logging.getLogger("shmstore").log(max(level, logging.getLogger().level), "%s", message)
    else:
        print("shmstore:", printable(message), file=sys.stderr, flush=True)
