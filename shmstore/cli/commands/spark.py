"""`shmstore spark`: Spark programs over a store."""

from __future__ import annotations

import argparse
from typing import Any

from shmstore.cli.command import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    commands.add(
        spark,
        "spark",
        "run a Spark program over a store, such as `replicate`: a copy of every table",
        "  shmstore spark replicate orders --tables 'shop.*' --target '/lake/{database}/{table}' --format delta",
        "`shmstore spark replicate --help` lists its options.",
        store=False,
    ).passes_on = True


def spark(options: argparse.Namespace) -> int:
    """`shmstore spark`: its own command line parses the rest, so that spark-submit has the same."""
    from shmstore.consumer.spark.__main__ import main as run_spark

    return run_spark(options.words if "words" in options else ["--help"], _server_tables)


def _server_tables(store: str, config: str) -> Any:
    from shmstore.producer import ServerTables, load_settings

    return ServerTables(load_settings(flags={"store": store}, config=config))
