"""What another user puts into shared memory, and what is damaged there, is neither trusted nor fatal."""

from __future__ import annotations

import os
import random
import stat as stat_module
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmstore import EventStore, LayoutMismatch, StoreError, StoreView
from shmstore.cli.main import main
from shmstore.consumer.monitoring.metrics import look, pages
from shmstore.memory import layout, segment
from tests.shmstore.store.logged import reboot

STRANGER, GROUP = 54322, 54321
DIRECTORY = Path("/dev/shm")


@pytest.fixture
def file(store_name: str) -> Iterator[Path]:
    """Where a store's segment is; what it has at the end is removed."""
    path = DIRECTORY / f"shmstore.{store_name}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("user", "uid", "gid", "mode", "foreign"),
    [
        (1000, 1000, 1000, 0o600, False),
        (1000, 1000, 1000, 0o666, False),
        (1000, 0, 0, 0o600, False),
        (1000, STRANGER, GROUP, 0o660, False),
        (1000, STRANGER, GROUP, 0o640, False),
        (1000, STRANGER, GROUP, 0o666, True),
        (1000, STRANGER, GROUP, 0o664, True),
        (1000, STRANGER, 77, 0o660, True),
        (1000, STRANGER, GROUP, 0o600, True),
        (0, STRANGER, GROUP, 0o600, False),
        (0, STRANGER, 77, 0o660, False),
        (0, STRANGER, GROUP, 0o666, True),
    ],
)
def test_who_is_trusted(monkeypatch: pytest.MonkeyPatch, user: int, uid: int, gid: int, mode: int, foreign: bool) -> None:
    """This user, root, and a group of both; root uses all users' stores, and no user one that all may write to."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getegid", lambda: user)
    monkeypatch.setattr(os, "getgroups", lambda: [GROUP])
    status = SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=stat_module.S_IFREG | mode)
    assert segment._is_foreign(status) is foreign  # type: ignore[arg-type]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file to another user")
class TestOfAnotherUser:
    """A file of another user."""

    def test_a_segment_that_all_may_write_to(self, store_name: str, file: Path) -> None:
        """It takes no rows: neither who attaches nor who looks uses it, and the message says whose it is."""
        EventStore.create(store_name, log=False).close()
        os.chown(file, STRANGER, -1)
        os.chmod(file, 0o666)
        for kind in (EventStore, StoreView):
            with pytest.raises(StoreError, match=f"belongs to uid {STRANGER}, with mode 0666.*let its owner, or root, remove it"):
                kind.attach(store_name)
        assert store_name not in look()[1]

    def test_a_segment_in_the_place_of_a_home(self, store_name: str, file: Path, tmp_path: Path) -> None:
        """A store that is in its home is not taken for another user's segment of its name, made after a reboot."""
        with EventStore.create(store_name, state=tmp_path) as store:
            store.put(b"mine")
        reboot(store_name)
        EventStore.create(store_name, log=False).close()
        os.chown(file, STRANGER, -1)
        with pytest.raises(StoreError, match=f"of uid {STRANGER}.* is not the one of the home {tmp_path}/{store_name}"):
            EventStore.attach(store_name, state=tmp_path)
        EventStore.unlink(store_name)
        with EventStore.attach(store_name, state=tmp_path) as store:
            assert store.newest == 0
        os.chown(file, STRANGER, -1)  # root looks at a store of a user, whose home it is
        StoreView.attach(store_name, state=tmp_path).close()

    @pytest.mark.parametrize("content", ["nothing", "magic", "version", "short", "random"])
    def test_a_file_that_is_no_store(self, store_name: str, file: Path, content: str) -> None:
        """It is no alarm for other users, also where it begins like a store: not for root, who sees the stores of all users."""
        EventStore.create(store_name, log=False).close()
        whole, (_, magic), (_, version) = file.read_bytes(), *(layout.HEADER.fields[each][:2] for each in ("magic", "version"))  # type: ignore[index]
        assert magic == 0
        begun = {
            "nothing": b"nothing",
            "magic": layout.MAGIC.ljust(len(whole), b"\0"),
            "version": whole[: version + 8].ljust(len(whole), b"\0"),
            "short": whole[: layout.HEADER.itemsize],
            "random": layout.MAGIC + random.Random(store_name).randbytes(1 << 16),
        }
        file.write_bytes(begun[content])
        os.chown(file, STRANGER, -1)
        assert store_name not in look()[1]

    def test_a_store_of_another_layout(self, store_name: str, file: Path) -> None:
        """Root sees one of a user's, because perhaps no version of that user's programs is left to report it."""
        EventStore.create(store_name, log=False).close()
        of_layout(file, layout.VERSION + 1)
        os.chown(file, STRANGER, -1)
        assert f"has layout version {layout.VERSION + 1}" in look()[1][store_name]


def of_layout(file: Path, version: int) -> None:
    with file.open("r+b") as raw:
        raw.seek(layout.HEADER.fields["version"][1])  # type: ignore[index]
        raw.write(struct.pack("<q", version))


def test_names_that_no_store_can_have(store_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files with such names are passed over, by `ls`, /metrics and /healthz."""
    odd = [DIRECTORY / f"shmstore.{store_name}{end}" for end in (" (copy)", "\n", "é", "@1f.3", "x" * 120)]
    with EventStore.create(store_name, log=False):
        try:
            for path in odd:
                path.touch()
            assert [name for name in StoreView.names() if name.startswith(store_name)] == [store_name]
            assert main(["ls"]) == 0
            assert "copy" not in capsys.readouterr().out
            assert not any(store_name in name for name in look()[1])
        finally:
            for path in odd:
                path.unlink(missing_ok=True)


def test_a_store_of_another_layout_is_down(store_name: str, file: Path) -> None:
    """One of this user's is reported by /healthz and /metrics, also where it was not named; `ls` says what is wrong with it."""
    EventStore.create(store_name, log=False).close()
    of_layout(file, layout.VERSION + 1)
    answer = pages(look)
    status, text = answer("/healthz") or (0, "")
    assert status == 503
    assert f"has layout version {layout.VERSION + 1}" in text
    assert f'shmstore_up{{store="{store_name}"}} 0\n' in (answer("/metrics") or (0, ""))[1]


def test_a_damaged_text(store_name: str, file: Path, tmp_path: Path) -> None:
    """A NUL within a text ends it; a home that is damaged is refused with what to do, not with "embedded null byte"."""
    with EventStore.create(store_name, state=tmp_path) as store:
        store.subscribe("audit").close()
        at = segment._text_at("name", 1)[0]
        store.segment._fixed[at + 2 : at + 3] = b"\0"
        assert [each.name for each in store.subscriptions()] == ["au"]
        store.segment._fixed[at : at + 2] = b".."
        assert store._table._durable(1) is None
    with file.open("r+b") as raw:
        raw.seek(segment._text_at("home", None)[0] + 3)
        raw.write(b"\0")
    for kind in (EventStore, StoreView):
        with pytest.raises(LayoutMismatch, match=f"names an impossible home.*shmstore rm {store_name}"):
            kind.attach(store_name, state=tmp_path)
    assert "names an impossible home" in look()[1][store_name]
