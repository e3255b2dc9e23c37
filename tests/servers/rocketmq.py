"""A name server and a broker of RocketMQ on 127.0.0.1, and its own Java client as reader. Their jars come from Maven Central, once, into the cache folder."""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers import maven
from tests.servers.daemon import Daemon
from tests.servers.kafka import SOON
from tests.servers.ports import free_port

VERSION = "5.5.0"
_BROKER = """brokerName={name}
brokerIP1=127.0.0.1
listenPort={port}
haListenPort={ha}
namesrvAddr=127.0.0.1:{names}
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=600000
maxHashSlotNum=1000
maxIndexNum=4000
flushDiskType=SYNC_FLUSH
maxMessageSize=1048576
autoCreateTopicEnable=false
timerWheelEnable=false
cleanFileForciblyEnable=false
"""
_LOGIN = """authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
authorizationEnabled=true
authorizationProvider=org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider
authorizationMetadataProvider=org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
authConfigPath={folder}/auth
initAuthenticationUser={{"username":"{user}","password":"{password}"}}
innerClientAuthenticationCredentials={{"accessKey":"{user}","secretKey":"{password}"}}
"""


class Found(NamedTuple):
    """A message as RocketMQ's client has it."""

    id: str
    body: bytes
    properties: dict[str, str]


class RocketServer(Daemon):
    """A broker, which takes messages of a MiB, with its log in `folder`, and the name server at `address`, which outlives it.

    `login`: user and password of all rights; without, clients need no login. `tls`: certificate and key; servers take connections with and without.
    `shared` is another broker whose name server and client this one shares.
    """

    name = "RocketMQ"

    def __init__(
        self,
        folder: Path,
        login: tuple[str, str] | None = None,
        tls: tuple[str, str] | None = None,
        broker: str = "b",
        shared: RocketServer | None = None,
    ) -> None:
        super().__init__(folder)
        self.login = login
        self.certificate = tls[0] if tls else ""
        self._shared = shared
        self._broker = f"127.0.0.1:{self.port}"
        self.names = shared.names if shared else free_port()
        self.address = f"127.0.0.1:{self.names}"
        self._starts = 0
        self._names: subprocess.Popen[bytes] | None = None
        self._tools: subprocess.Popen[str] | None = None
        jars = maven.jars(
            f"rocketmq-{VERSION}",
            f"org.apache.rocketmq:rocketmq-namesrv:{VERSION}",
            f"org.apache.rocketmq:rocketmq-broker:{VERSION}",
        )
        # A JVM that is killed leaves the libraries that it unpacked.
        self._java = ["java", "-Xmx256m", *SOON, f"-Duser.home={folder}", f"-Djava.io.tmpdir={folder}", "-cp", f"{jars}/*"]
        # A broker takes nothing where the disk is 90 % full.
        self._server = [*self._java, "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99"]
        if tls:
            self._server += ["-Dtls.test.mode.enable=false", f"-Dtls.server.certPath={tls[0]}", f"-Dtls.server.keyPath={tls[1]}"]
        (folder / "names.conf").write_text(
            f"listenPort={self.names}\nkvConfigPath={folder}/kv.json\nconfigStorePath={folder}/names\n"
        )
        text = _BROKER.format(name=broker, port=self.port, ha=free_port(), names=self.names, folder=folder)
        if login:
            text += _LOGIN.format(folder=folder, user=login[0], password=login[1])
        (folder / "broker.conf").write_text(text)

    def command(self) -> list[str]:
        """The words that start the broker."""
        return [*self._server, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.folder / "broker.conf")]

    def environment(self) -> dict[str, str]:
        """What both read."""
        return os.environ | {"ROCKETMQ_HOME": str(self.folder)}

    def start(self) -> None:
        """Start the broker, and the name server where that does not run."""
        if self._names is None and self._shared is None:
            command = [*self._server, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(self.folder / "names.conf")]
            with (self.folder / "names.log").open("ab") as out:
                self._names = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=self.environment())
            program = Path(__file__).with_name("RocketTools.java")
            command = [*self._java, str(program), self.address, *(self.login or ())]
            with (self.folder / "tools.log").open("ab") as out:
                pipe = subprocess.PIPE
                self._tools = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=out, text=True)
        try:
            super().start()
        except BaseException:
            self.end()
            raise
        self._starts += 1

    def answers(self) -> bool:
        """Whether it takes messages. It would tell the name server of itself after ten seconds, since its first try comes too early."""
        if (self.folder / "server.log").read_text(errors="replace").count("boot success") <= self._starts:
            return False
        self.tell("register", self._broker)
        return True

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill all."""
        self.stop()
        for process in (self._names, self._tools):
            if process is not None:
                process.kill()
                process.wait()

    def tell(self, *words: str) -> list[str]:
        """Have RocketMQ's own client do what ``RocketTools.java`` lists; return the lines that it answers."""
        if self._shared is not None:
            return self._shared.tell(*words)
        assert self._tools is not None
        assert self._tools.stdin is not None
        assert self._tools.stdout is not None
        print(*words, file=self._tools.stdin, flush=True)
        lines = []
        for line in self._tools.stdout:
            if line == "END\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"RocketMQ's client ended: {(self.folder / 'tools.log').read_text()[-3000:]}")

    def make_topic(self, name: str, queues: int) -> None:
        """Make a topic, or change how many queues it has."""
        self.tell("topic", self._broker, name, str(queues))

    def make_user(self, name: str, password: str) -> None:
        """Make a user without rights."""
        self.tell("user", self._broker, name, password)

    def read(self, topic: str) -> dict[int, list[Found]]:
        """All messages of a topic, by queue."""
        found: dict[int, list[Found]] = {}
        for line in self.tell("read", topic):
            number, name, body, *more = line.split(" ")
            properties = {key: base64.b64decode(value).decode() for key, _, value in (each.partition("=") for each in more)}
            found.setdefault(int(number), []).append(Found(name, base64.b64decode(body), properties))
        return found


@contextmanager
def rocket_server(login: tuple[str, str] | None = None, tls: tuple[str, str] | None = None) -> Iterator[RocketServer]:
    """Both while the block runs."""
    with tempfile.TemporaryDirectory(prefix="shmstore-rocket-") as folder, RocketServer(Path(folder), login, tls) as server:
        yield server


@contextmanager
def rocket_cluster(count: int = 2) -> Iterator[list[RocketServer]]:
    """Brokers at one name server while the block runs; the first of them reads."""
    with tempfile.TemporaryDirectory(prefix="shmstore-rocket-") as folder, ExitStack() as stack:
        brokers: list[RocketServer] = []
        for number in range(count):
            (own := Path(folder, str(number))).mkdir()
            shared = brokers[0] if brokers else None
            brokers.append(stack.enter_context(RocketServer(own, broker=f"b{number}", shared=shared)))
        yield brokers
