"""Arrow Flight: a server of this host's stores, for Python, pandas, Polars and other languages elsewhere. Needs the extra `arrow`."""

from shmstore.consumer.flight.settings import FlightSettings

__all__ = ["FlightSettings"]
