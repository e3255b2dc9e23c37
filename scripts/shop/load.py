"""The live load: several connections that insert, update, delete, roll back and alter, at a rate, for a number of row changes.

Runs as a process of its own (``python -m scripts.shop.load '{"port": ...}'``) and writes one JSON line of counts to stdout every
quarter second. Row changes are counted as the server counts them (changed rows of committed statements), and the load stops at
exactly the number asked for, so that the rows in the ring can be compared with it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any, Final

from scripts.shop.schema import LIVE_DDL
from scripts.shop.shared_load import CONNECTIONS, LARGEST, SharedLoad
from scripts.shop.worker import Worker

_REPORT: Final = 0.25  # seconds between two lines of counts


class Load(SharedLoad):
    """The whole load: workers, and the DDLs between them."""

    def run(self) -> None:
        """Run the load to its end. Raises what a connection raised."""
        began = time.monotonic()
        workers = [Worker(self, number) for number in range(CONNECTIONS)]
        threads = [threading.Thread(target=self._guarded, args=(worker.work,), daemon=True) for worker in workers]
        threads.append(threading.Thread(target=self._guarded, args=(self._alter,), daemon=True))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._report(began)
            threads[0].join(_REPORT) if threads[0].is_alive() else time.sleep(_REPORT)
        if not self.stopped.is_set():
            workers[0].finish(self.target - self.totals.rows)
        self._report(began)
        if self.failures:
            raise self.failures[0]

    def _alter(self) -> None:
        """Run each DDL when its part of the load is done, while the workers continue."""
        connection = self.connect()
        for share, sql in LIVE_DDL:
            while self.totals.rows < share * (self.target - CONNECTIONS * LARGEST):
                if self.stopped.wait(0.02):
                    return
            connection.cursor().execute(sql)
            self.ddl_done += 1
            with self.totals.lock:
                self.totals.ddls += 1

    def _guarded(self, function: Any) -> None:
        try:
            function()
        except BaseException as error:
            self.failures.append(error)
            self.stopped.set()

    def _report(self, began: float) -> None:
        print(self.totals.line(time.monotonic() - began), flush=True)


def main() -> None:
    """Run the load that the JSON argument describes."""
    options = json.loads(sys.argv[1])
    load = Load(options["server"], rows=options["rows"], rate=options["rate"], seed=options["seed"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load.run()


if __name__ == "__main__":
    main()
