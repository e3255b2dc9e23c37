"""deploy/containers: what is in them is understood by the commands they run, and stores work across such containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shmstore import EventStore, StoreView
from shmstore.cli.command_line import commands as every_command

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "deploy" / "containers"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
    return found


def stateful_set() -> dict[str, Any]:
    return next(
        each for each in yaml.safe_load_all((CONTAINERS / "kubernetes.yaml").read_text()) if each["kind"] == "StatefulSet"
    )


def commands() -> Iterator[list[str]]:
    yield from (service["command"] for service in compose()["services"].values())
    yield from (container["args"] for container in stateful_set()["spec"]["template"]["spec"]["containers"])


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: words[0])
def test_every_command_parses(words: list[str]) -> None:
    """As the command itself reads it, options and all."""
    parsed = every_command().parser.parse_args(words)
    assert parsed.run is every_command().by_name[words[0]].get_default("run")


def test_containers_of_a_store_share_memory_and_home() -> None:
    """Every service of compose has the producer's /dev/shm, and every container of the pod the volume in its place; all have the home."""
    services = compose()["services"]
    assert {name: service["ipc"] for name, service in services.items()} == {
        name: "shareable" if name == "produce" else "service:produce" for name in services
    }
    assert all("home:/var/lib/shmstore" in service["volumes"] for service in services.values())
    pod = stateful_set()["spec"]["template"]["spec"]
    for container in pod["containers"]:
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/dev/shm", "/var/lib/shmstore"}
    assert next(volume for volume in pod["volumes"] if volume["name"] == "shm")["emptyDir"]["medium"] == "Memory"


def test_the_image_installs_what_there_is() -> None:
    """The extras that the Dockerfile names exist, its user is the pod's, and its home is where the files mount it."""
    text = (CONTAINERS / "Dockerfile").read_text()
    extras = re.search(r"\.whl\)\[([a-z,]+)\]", text)
    assert extras is not None
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras[1].split(","))
    assert "--uid 10001" in text
    assert stateful_set()["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 10001
    assert "VOLUME /var/lib/shmstore" in text


def test_containers_may_do_little() -> None:
    """No container writes to its own file system, has a capability, or gains one."""
    for service in compose()["services"].values():
        assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
    pod = stateful_set()["spec"]["template"]["spec"]
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]


def test_probes_ask_what_a_restart_or_a_service_can_act_on() -> None:
    """No probe asks /healthz: the pod would leave its Service, or restart, for what is wrong elsewhere. A hung producer is ended."""
    containers = {each["name"]: each for each in stateful_set()["spec"]["template"]["spec"]["containers"]}
    probes = [probe for each in containers.values() for name, probe in each.items() if name.endswith("Probe")]
    assert len(probes) == 5
    assert not any("httpGet" in probe for probe in probes)
    command = containers["produce"]["livenessProbe"]["exec"]["command"]
    assert every_command().parser.parse_args(command[1:]).hung_after == 300


def test_the_service_of_the_stateful_set() -> None:
    """It exists, is headless, selects the pod, and names ports that containers have."""
    documents = list(yaml.safe_load_all((CONTAINERS / "kubernetes.yaml").read_text()))
    (service,) = [each for each in documents if each["kind"] == "Service"]
    spec = stateful_set()["spec"]
    assert service["metadata"]["name"] == spec["serviceName"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    ports = {port["containerPort"] for each in spec["template"]["spec"]["containers"] for port in each.get("ports", ())}
    assert {port["port"] for port in service["spec"]["ports"]} == ports


LOCKED = """
set -e
mount --make-rprivate /
mount --bind "$SHMSTORE_STATE" "$SHMSTORE_STATE"
mount -o remount,bind,ro /
! touch "$HERE/written" 2>/dev/null
run() { setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$PYTHON" -m shmstore "$@"; }
run create "$STORE"
run stat "$STORE" --hung-after 60
run tail "$STORE" --subscription export --no-follow
run stat "$STORE" --json
run rm "$STORE" --log
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and unshare")
def test_commands_run_without_a_writable_root_and_capabilities(store_name: str, state: Path) -> None:
    """As in those containers: only /dev/shm and the home can be written."""
    state.mkdir(exist_ok=True)
    own = {"HERE": str(ROOT), "STORE": store_name, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", LOCKED],
        env=os.environ | own,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"newest": -1' in done.stdout


READER = """
import os, sys
from shmstore import Consumer
assert os.getpid() == 1
with Consumer(sys.argv[1], "reader", timeout=30) as consumer:
    for batch in consumer:
        if batch.last >= 99:
            break
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and unshare")
def test_a_reader_that_cannot_see_the_producers_process(store_name: str, state: Path) -> None:
    """A reader in a process namespace of its own, where it is process 1, as in a container, reads, acks, and is not taken for alive when gone."""
    with EventStore.create(store_name) as store:
        for number in range(100):
            store.put(b"%d" % number)
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", READER, store_name]
        subprocess.run(command, cwd=ROOT, timeout=120, check=True)
        with StoreView.attach(store_name) as view:
            (reader,) = view.subscriptions()
            assert (reader.ack.sequence, reader.alive) == (99, False)
            assert view.stat().producer_alive
