"""Canal's client/server protocol over TCP: clients written for Canal read a store unchanged. Needs the extra `server`."""

from shmstore.consumer.wire.server.settings import CanalSettings


def serve(settings: CanalSettings) -> list[int]:
    """Serve until SIGTERM or SIGINT; blocks; returns the signals that came. Raises `OSError` where the address or the certificate cannot be had."""
    import asyncio

    from shmstore.consumer.wire.server.process import run

    return asyncio.run(run(settings))


__all__ = ["CanalSettings", "serve"]
