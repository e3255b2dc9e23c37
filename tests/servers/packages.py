"""Database servers out of the system's package archive, unpacked into a cache folder: no root, no installation, no service.

apt gets a root of its own (an empty dpkg status, so that it names every dependency down to libc), signatures are checked by the
machine's archive keyrings, and every package is unpacked into one folder. The server is started through that folder's own dynamic
loader, so a server built for a newer release runs on an older one.

    CACHE/servers/KIND-VERSION/root      the unpacked packages; published by one rename, so each folder is whole
    CACHE/servers/KIND.lock              held while KIND is looked for or fetched: a second process waits for the first
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class ServerUnavailable(RuntimeError):
    """A server could not be had or did not start; the message says what was tried and what to do."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kind of server comes from."""

    package: str  # "PACKAGE-core": name of the server package in the archive, perhaps with a version after it
    client: str
    suites: dict[str, str]  # distribution -> suite of its archive; where it is not named, the machine's own release
    version: str  # what the version must start with; "" takes the one found


ORIGINS = {
    "mariadb": Origin("mariadb-server-core", "mariadb-client-core", {}, ""),
    "mariadb105": Origin("mariadb-server-core", "mariadb-client-core", {"debian": "bullseye"}, "10.5"),
    "mariadb118": Origin("mariadb-server-core", "mariadb-client-core", {"debian": "trixie", "ubuntu": "resolute"}, "11.8"),
    "mysql": Origin("mysql-server-core", "mysql-client-core", {"debian": "sid"}, ""),
    "python314": Origin("python3.14", "libpython3.14-dev", {"debian": "sid", "ubuntu": "resolute"}, "3.14"),  # for scripts/wheels
    "rabbitmq": Origin("rabbitmq-server", "erlang-base", {}, ""),
    "nats": Origin("nats-server", "nats-server", {}, ""),
    "redis": Origin("redis-server", "redis-tools", {}, ""),
    "postgresql": Origin("postgresql", "postgresql-client", {}, ""),
    "prometheus": Origin("prometheus", "prometheus", {}, ""),  # with promtool
    "percona-toolkit": Origin("percona-toolkit", "libdbd-mysql-perl", {}, ""),  # pt-online-schema-change, in Perl
    "chromium": Origin("chromium-headless-shell", "chromium-headless-shell", {}, ""),  # a browser without windows
}


def cache_folder() -> Path:
    """$SHMSTORE_CACHE, else $XDG_CACHE_HOME/shmstore, else ~/.cache/shmstore."""
    if chosen := os.environ.get("SHMSTORE_CACHE"):
        return Path(chosen).expanduser().resolve()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "shmstore"
    return Path.home() / ".cache" / "shmstore"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock, which the kernel releases if the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpacked(kind: str) -> Path:
    """Give the root folder of an unpacked server of this kind, fetching it the first time."""
    if kind not in ORIGINS:
        raise ServerUnavailable(f"unknown kind of server {kind!r}; known: {', '.join(sorted(ORIGINS))}")
    servers = cache_folder() / "servers"
    with locked(servers / f"{kind}.lock"):
        versions = sorted(servers.glob(f"{kind}-*/root"), key=lambda root: _numbers(root.parent.name))
        return versions[-1] if versions else _fetch(kind, servers)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name.partition("-")[2])]


def _fetch(kind: str, servers: Path) -> Path:
    origin = ORIGINS[kind]
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise ServerUnavailable(
            f"no {kind} server here, and no apt-get to fetch one: install it so that its server program is on the PATH "
            f"(used for 'mariadb' and 'mysql'), or run on Debian or Ubuntu"
        )
    # In the cache's own file system, so that the rename at the end is one step. What a killed run left is swept by the next.
    for left in servers.glob(f".{kind}-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=servers))
    try:
        print(f"fetching the {kind} server's packages (once; kept in {servers})", file=sys.stderr, flush=True)
        apt = _Apt(work / "apt", _sources(origin.suites))
        apt.run("apt-get", "update")
        server = apt.newest(origin.package)
        apt.run("apt-get", "--yes", "--download-only", "install", server, server.replace(origin.package, origin.client))
        packages = sorted((work / "apt/var/cache/apt/archives").glob("*.deb"))
        version = next(p.name.split("_")[1] for p in packages if p.name.startswith(server + "_"))
        version = version.partition("%3a")[2] or version  # the epoch, as apt writes it into file names
        if not version.startswith(origin.version):
            raise ServerUnavailable(f"{kind} needs version {origin.version}, and the archive holds {server} {version}")
        root = work / "root"
        for package in packages:
            subprocess.run(["dpkg-deb", "-x", package, root], check=True, capture_output=True)
        final = servers / f"{kind}-{re.match(r'[0-9.]+', version)[0]}"  # type: ignore[index]
        shutil.rmtree(work / "apt")
        shutil.rmtree(final, ignore_errors=True)
        work.chmod(0o755)
        work.rename(final)
        return final / "root"
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or b"").decode(errors="replace").strip()
        raise ServerUnavailable(f"could not fetch the {kind} server: {' '.join(map(str, error.cmd))}\n{said[-2000:]}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Apt:
    """apt with a root of its own: reads only the keyrings and network settings of the system, and writes nothing to it."""

    def __init__(self, root: Path, sources: str) -> None:
        for folder in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/dpkg"):
            (root / folder).mkdir(parents=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        (root / "etc/apt/sources.list.d/shmstore.sources").write_text(sources)
        settings = {
            "Dir": root,
            "Dir::State::status": root / "var/lib/dpkg/status",
            "Dir::Etc::Trusted": "/etc/apt/trusted.gpg",
            "Dir::Etc::TrustedParts": "/etc/apt/trusted.gpg.d",
            "Dir::Bin::Methods": "/usr/lib/apt/methods",
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::Retries": "3",
            # sid's index is valid for a week only: a mirror that lags would stop all tests. Signatures are checked all the same.
            "Acquire::Check-Valid-Until": "false",
        }
        if os.geteuid() == 0:
            settings["APT::Sandbox::User"] = "root"  # the _apt user cannot write below a private folder
        # The system's own settings (proxies, certificates) have been read before this file; its hooks must not run for us.
        hooks = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success")
        self._config = root / "apt.conf"
        lines = [f"#clear {hook};" for hook in hooks] + [f'{key} "{value}";' for key, value in settings.items()]
        self._config.write_text("\n".join(lines) + "\n")

    def run(self, program: str, *arguments: str) -> str:
        environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        command = [program, "-q", f"--config-file={self._config}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, env=environment).stdout.decode()

    def newest(self, package: str) -> str:
        """`package`, or where only numbered ones exist (mysql-server-core-8.0) the highest number."""
        names = self.run("apt-cache", "pkgnames", package).split()
        fitting = [name for name in names if re.fullmatch(re.escape(package) + r"(-[0-9.]+)?", name)]
        if not fitting:
            raise ServerUnavailable(f"the package archive of this release holds no {package}")
        return package if package in fitting else max(fitting, key=_numbers)


def _release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip('"') for key, _, value in pairs}


def _sources(suites: dict[str, str]) -> str:
    """The machine's own package sources, pointed at another suite of the same archive if asked for."""
    release = _release()
    codename = release.get("VERSION_CODENAME", "sid")
    names = {codename, "stable", "sid", "unstable"}
    # Other people's archives (of a container engine, a browser) have other components.
    stanzas = [stanza for stanza in _stanzas() if "main" in stanza.get("Components", "").split()]
    own = [stanza for stanza in stanzas if names & {name.partition("-")[0] for name in stanza["Suites"].split()}]
    if not own:
        raise ServerUnavailable(f"no package source for {codename} in /etc/apt/sources.list or /etc/apt/sources.list.d")
    suite = suites.get(release.get("ID", ""))
    if suite is None:
        chosen = own
    else:
        main = next((stanza for stanza in own if names & set(stanza["Suites"].split())), own[0])
        chosen = [{**main, "Suites": suite}]
    return "\n\n".join("\n".join(f"{key}: {value}" for key, value in stanza.items()) for stanza in chosen) + "\n"


def _stanzas() -> Iterator[dict[str, str]]:
    folder = Path("/etc/apt")
    for file in sorted((folder / "sources.list.d").glob("*.sources")):
        text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#"))
        for block in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", block, re.MULTILINE))
            if "deb" in fields.get("Types", "").split() and "Suites" in fields and fields.get("Enabled", "yes") != "no":
                yield {**fields, "Types": "deb"}
    for file in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]:
        for line in file.read_text().splitlines() if file.exists() else ():
            if match := re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line):
                options, uri, suite, components = match.groups()
                fields = {"Types": "deb", "URIs": uri, "Suites": suite, "Components": components.strip()}
                if key := re.search(r"signed-by=(\S+)", options or ""):
                    fields["Signed-By"] = key[1]
                yield fields
