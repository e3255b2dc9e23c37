"""Run one server so that it cannot outlive the process that wanted it: `guard.py PARENT_PIDFD FOLDER_OR_EMPTY COMMAND...`

Prints the server's pid, then waits on two process descriptors, which cannot be confused by a pid used again:

    the parent died (even by kill -9)  ->  kill the server, remove the folder
    the server ended                   ->  leave with its exit code
    the guard itself is killed         ->  the kernel kills the server (parent-death signal)

A parent-death signal straight from the test runner would not do: it fires when the *thread* that started the server ends.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Guard the command until it or the parent ends."""
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    prctl = ctypes.CDLL(None).prctl
    server = subprocess.Popen(command, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    print(server.pid, flush=True)
    own = os.pidfd_open(server.pid)
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(own, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll()}
    if own not in ended:
        server.kill()
        server.wait()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
