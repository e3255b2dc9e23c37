"""Canal's client/server protocol over TCP: clients written for Canal read a store unchanged. Needs the extra `server`."""

from consumer.wire.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; blocks. Raises `OSError` where the address or the certificate cannot be had."""
    import asyncio

    from consumer.wire.shell import run

    asyncio.run(run(settings))


__all__ = ["Settings", "serve"]
