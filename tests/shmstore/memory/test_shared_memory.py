"""A store's files by path: in /dev/shm and elsewhere they are opened, refused and removed alike."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore.memory import shared_memory
from shmstore.memory.shared_memory import open_file, remove_file


@pytest.fixture(params=["/dev/shm", "/dev/shm without posix-ipc", "disk"])
def path(request: pytest.FixtureRequest, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where no file is yet."""
    if "without" in request.param:
        monkeypatch.setattr(shared_memory, "HAS_POSIX_IPC", False)
    folder = request.param.split()[0] if request.param.startswith("/dev/shm") else str(tmp_path)
    where = f"{folder}/shmstore.{name}"
    yield where
    if os.path.lexists(where):
        os.unlink(where)


def refusal(function, *arguments, **options) -> tuple[type, int | None, str]:
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        function(*arguments, **options)
    return caught.type, caught.value.errno, caught.value.filename


def test_a_descriptor(path):
    """It reads, and writes unless it is only to read; no child inherits it, and it lives as long as its owner wants."""
    Path(path).write_bytes(b"whole")
    fd, looking = open_file(path), open_file(path, read_only=True)
    gc.collect()
    assert (os.pwrite(fd, b"W", 0), os.pread(looking, 9, 0)) == (1, b"Whole")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(looking, b"x", 0)
    for each in (fd, looking):
        assert fcntl.fcntl(each, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    remove_file(path)
    assert not os.path.lexists(path)
    assert os.pread(looking, 9, 0) == b"Whole"
    os.close(fd)
    os.close(looking)


def test_what_does_not_exist(path):
    for function in (open_file, remove_file):
        assert refusal(function, path) == (FileNotFoundError, errno.ENOENT, path)


def test_a_link_is_not_followed(path, tmp_path):
    """Nor removed is what it leads to."""
    (tmp_path / "theirs").write_bytes(b"")
    os.symlink(tmp_path / "theirs", path)
    assert refusal(open_file, path) == (OSError, errno.ELOOP, path)
    remove_file(path)
    assert (tmp_path / "theirs").exists()


@pytest.mark.timeout(30)
def test_a_pipe_does_not_block(path):
    """A named pipe that another user left under a store's name is opened at once, so that it can be refused."""
    os.mkfifo(path)
    os.close(open_file(path, read_only=True))


def test_used_up_descriptors(path):
    """The number of the error says that descriptors are missing, as open(2) does."""
    Path(path).write_bytes(b"")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            open_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_users_file(path):
    """Missing rights are a PermissionError with a number, to open and to remove."""
    Path(path).write_bytes(b"")
    os.chmod(path, 0o600)
    if not path.startswith("/dev/shm"):
        for folder in Path(path).parents:
            folder.chmod(folder.stat().st_mode | 0o005)
    code = f"""
import os, sys
from shmstore.memory.shared_memory import open_file, remove_file
os.setgroups([]); os.setgid(54321); os.setuid(54322)
for function in (open_file, remove_file):
    try:
        function({path!r})
    except PermissionError as error:
        print(error.errno in (1, 13), error.filename == {path!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["True"] * 4, "")
