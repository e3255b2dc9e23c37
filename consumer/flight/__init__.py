"""Arrow Flight: a server of this host's stores, for Python, pandas, Polars and other languages elsewhere. Needs the extra `arrow`."""

from shmstore.consumer.flight.settings import FlightSettings


def serve(settings: FlightSettings) -> list[int]:
    """Serve until SIGTERM or SIGINT; blocks; returns the signals that came. Raises `OSError` where the address or the certificate cannot be had."""
    from shmstore.consumer.flight.process import run

    return run(settings)


__all__ = ["FlightSettings", "serve"]
