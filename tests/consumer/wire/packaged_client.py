"""Drives canal-python (`canal`) or py3canal (`pycanal`) by lines of JSON: [method, arguments] in, [kind, value] out.

Run as a program, with the package's name. The client is used as its documentation shows; nothing in it is changed.
"""

import asyncio
import importlib
import json
import sys


def plain(value, protocol):
    """A message as plain values: its id, and of each entry type, event, schema, table and rows, (before, after) by column."""
    if not isinstance(value, dict):
        return None
    found = []
    for entry in value["entries"]:
        rows = []
        if entry.entryType == protocol.EntryType.ROWDATA:
            change = protocol.RowChange()
            change.MergeFromString(entry.storeValue)
            for row in change.rowDatas:
                rows.append(
                    [{c.name: None if c.isNull else c.value for c in image} for image in (row.beforeColumns, row.afterColumns)]
                )
        found.append([entry.entryType, entry.header.eventType, entry.header.schemaName, entry.header.tableName, rows])
    return {"id": value["id"], "entries": found}


def main(package: str) -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # the clients print
    module = importlib.import_module(f"{package}.client")
    protocol = importlib.import_module(f"{package}.protocol.EntryProtocol_pb2")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    client = None
    for line in sys.stdin:
        method, arguments = json.loads(line)
        arguments = {
            name: value.encode() if isinstance(value, str) and method != "connect" else value for name, value in arguments.items()
        }
        try:
            if method == "connect":
                if package == "canal":
                    client = module.Client()
                    value = client.connect(**arguments)
                else:
                    client = module.CanalClient(**arguments)
                    value = client.connect()
            else:
                value = getattr(client, method)(**arguments)
            if asyncio.iscoroutine(value):
                value = loop.run_until_complete(value)
            answer = ["value", plain(value, protocol)]
        except Exception as error:
            answer = ["error", f"{type(error).__name__}: {error}"]
        print(json.dumps(answer), file=out, flush=True)


main(sys.argv[1])
