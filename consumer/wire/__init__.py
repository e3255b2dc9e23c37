"""Canal's client/server protocol over TCP: clients written for Canal read a store unchanged. Needs the extra `server`."""

from shmstore.consumer.wire.server.process import CanalProcess
from shmstore.consumer.wire.server.settings import CanalSettings

__all__ = ["CanalProcess", "CanalSettings"]
