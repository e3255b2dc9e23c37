"""What is asked before memory is taken: the host, and the control groups that limit this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmstore.memory.available import free_memory

GIB = 1 << 30
V1 = Path("/sys/fs/cgroup/memory")


def tree(root: Path, groups: str, mounts: list[str], files: dict[str, str], meminfo: str = "") -> str:
    """A /proc and control groups under `root`; `mounts` are (root of the mount, folder, type and options)."""
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(meminfo or f"MemAvailable: {8 * GIB // 1024} kB\nSwapFree: 0 kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    lines = [f"31 23 0:{20 + i} {mount.format(root=root)}\n" for i, mount in enumerate(mounts)]
    (proc / "self" / "mountinfo").write_text("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" + "".join(lines))
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(proc)


V2_MOUNT = "/ {root}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNTS = ["/ {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct", "/ {root}/memory rw - cgroup cgroup rw,memory"]


def test_the_host(tmp_path: Path) -> None:
    """Without control groups it is what the host has, swap included; where /proc says nothing, nothing is in the way."""
    meminfo = "MemTotal: 9 kB\nMemAvailable: 4 kB\nSwapFree: 2 kB\nHugePages_Total:       0\n"
    assert free_memory(tree(tmp_path, "", [], {}, meminfo)) == 6 * 1024
    assert free_memory(str(tmp_path / "none")) >= 2**62


def test_version_2(tmp_path: Path) -> None:
    """The tightest group on the way up counts; pages that can be given up at once count as free, and "max" limits nothing."""
    files = {
        "cg/a/b/memory.max": "max",
        "cg/a/b/memory.high": "max",
        "cg/a/b/memory.current": "5",
        "cg/a/memory.max": str(2 * GIB),
        "cg/a/memory.high": "max",
        "cg/a/memory.current": str(GIB),
        "cg/a/memory.stat": "anon 7\ninactive_file 1000\nactive_file 9",
    }
    assert free_memory(tree(tmp_path, "0::/a/b\n", [V2_MOUNT], files)) == GIB + 1000
    (tmp_path / "cg/a/memory.high").write_text(str(GIB + 24))
    assert free_memory(str(tmp_path / "proc")) == 1024
    (tmp_path / "cg/a/memory.high").write_text("1")
    assert free_memory(str(tmp_path / "proc")) == 0


def test_version_1(tmp_path: Path) -> None:
    """As in version 2, by that version's names, and next to an empty tree of version 2."""
    groups = "5:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/s\n0::/\n"
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
        "memory/a/b/memory.limit_in_bytes": str(2 * GIB),
        "memory/a/b/memory.usage_in_bytes": str(GIB),
        "memory/a/b/memory.stat": "inactive_file 3\ntotal_inactive_file 1000",
    }
    mounts = [*V1_MOUNTS, "/ {root}/unified rw - cgroup2 cgroup2 rw"]
    assert free_memory(tree(tmp_path, groups, mounts, files)) == GIB + 1000


@pytest.mark.parametrize("mount_root", ["/docker/abc", "/"])
@pytest.mark.parametrize("path", ["/docker/abc", "/../.."])
def test_in_a_container(tmp_path: Path, mount_root: str, path: str) -> None:
    """In a container the group's path may be the host's, or above what is mounted: what is mounted counts all the same."""
    files = {"memory/memory.limit_in_bytes": str(2 * GIB), "memory/memory.usage_in_bytes": str(GIB)}
    mounts = [f"{mount_root} {{root}}/memory rw - cgroup cgroup rw,memory"]
    assert free_memory(tree(tmp_path, f"4:memory:{path}\n", mounts, files)) == GIB


CREATES = """
import os, sys
from shmstore import EventStore, StoreError
import shmstore.memory.segment, numpy
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
try:
    EventStore.create(sys.argv[2], capacity=1024, memory_unit=100_000, log=False)
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(
    not os.access(V1 / "memory.limit_in_bytes", os.W_OK), reason="needs the right to make a control group (version 1)"
)
def test_a_store_larger_than_the_group_is_refused(name: str) -> None:
    """`create` says that the control group has no such memory; the kernel would end the process."""
    group = V1 / name
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        words = [sys.executable, "-c", CREATES, str(group), name]
        made = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made
        assert "control group" in made.stdout
    finally:
        group.rmdir()
