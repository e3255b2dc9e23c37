"""What a CI run left behind: processes, shared memory, temporary folders.

`list` names the shared memory of all stores now, space separated. `check BEFORE` fails if, half a minute later at most, there is
- a process that carries this run's mark ($SHMSTORE_CI_RUN) in its environment, other than the run itself (it is killed),
- a segment or semaphore of a store that was not there BEFORE and that no process of somebody else has mapped,
- a folder or file named shmstore-* in $TMPDIR.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

PATIENCE_SECONDS = 30.0


def memory() -> set[str]:
    """Names in /dev/shm that belong to stores."""
    return {name for name in os.listdir("/dev/shm") if name.removeprefix("sem.").startswith("shmstore")}


def ancestors(pid: int) -> set[int]:
    """The process and those above it: the run itself."""
    found = set()
    while pid > 0:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def processes() -> dict[int, str]:
    """Processes with this run's mark in their environment, but for the run itself: pid and command."""
    mark = f"SHMSTORE_CI_RUN={os.environ['SHMSTORE_CI_RUN']}".encode()
    own, found = ancestors(os.getpid()), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command:  # a zombie has none, and is gone for all purposes
                    found[int(entry.name)] = command[:200]
        except OSError:
            continue
    return found


def mapped() -> set[str]:
    """Names in /dev/shm that some process has mapped."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "maps").read_text().splitlines()
            except OSError:
                continue
            found |= {line.partition("/dev/shm/")[2].removesuffix(" (deleted)") for line in lines if "/dev/shm/" in line}
    return found


def left(before: set[str]) -> tuple[dict[int, str], list[str], list[str]]:
    """Processes, shared memory and temporary files that the run left."""
    new = memory() - before
    return (
        processes(),
        sorted(new - mapped()) if new else [],
        sorted(p.name for p in Path(os.environ["TMPDIR"]).glob("shmstore-*")),
    )


def check(before: set[str]) -> int:
    """Wait for the last processes to end, then tell what is left; 1 if anything is."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(left(before)) and time.monotonic() < deadline:
        time.sleep(0.5)
    running, segments, files = left(before)
    for pid, command in running.items():
        print(f"left behind: process {pid}: {command}")
        os.kill(pid, signal.SIGKILL)
    for name in segments:
        print(f"left behind: /dev/shm/{name}")
    for name in files:
        print(f"left behind: {os.environ['TMPDIR']}/{name}")
    return 1 if running or segments or files else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["list"]:
        print(" ".join(sorted(memory())))
        sys.exit(0)
    sys.exit(check(set(sys.argv[2].split())))
