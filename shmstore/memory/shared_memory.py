"""Open and remove a store's files by path: POSIX shared memory objects (shm_overview(7)) in /dev/shm, and files elsewhere.

shm_open(3) gives a descriptor, which is what the mapping needs: each ring is mapped twice. `multiprocessing.shared_memory` has one
mapping and gives no descriptor; its resource tracker may remove a segment that other processes use.

A file in memory and one on disk fail with the same errors, those of open(2) and unlink(2), so that callers have one way to report them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# posix-ipc 1.3.2 has no wheel for Python 3.14, where an installation without a compiler would fail. There open(2) does what shm_open(3) does.
HAS_POSIX_IPC = sys.version_info < (3, 14)
if HAS_POSIX_IPC:
    import posix_ipc

DIRECTORY: Final = "/dev/shm"
# No link is followed, no child inherits the descriptor, and a pipe that has a store's name does not block a reader.
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def open_file(path: str, *, read_only: bool = False) -> int:
    """Return a descriptor of the file, for reading and writing unless `read_only`. Raises OSError."""
    if _is_object(path):
        with _errors_of_files(path):
            return int(posix_ipc.SharedMemory(_object(path), flags=_FLAGS, read_only=read_only).fd)
    return os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | _FLAGS)


def remove_file(path: str) -> None:
    """Remove the file's name; processes that have it mapped keep the memory. Raises OSError."""
    if _is_object(path):
        with _errors_of_files(path):
            posix_ipc.unlink_shared_memory(_object(path))
    else:
        os.unlink(path)


def _is_object(path: str) -> bool:
    return HAS_POSIX_IPC and os.path.dirname(path) == DIRECTORY


def _object(path: str) -> str:
    return f"/{os.path.basename(path)}"


@contextmanager
def _errors_of_files(path: str) -> Iterator[None]:
    try:
        yield
    except posix_ipc.ExistentialError:
        number = errno.ENOENT
    except posix_ipc.PermissionsError:
        number = errno.EACCES
    except OSError as error:
        # posix_ipc gives these two no number: the process, or the whole host, has no more descriptors.
        number = error.errno or (errno.ENFILE if "system" in str(error) else errno.EMFILE)
    else:
        return
    raise OSError(number, os.strerror(number), path)
