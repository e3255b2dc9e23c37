"""Options from flags, environment and file; what is wrong is named."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from shmstore.producer.errors import SettingsError
from shmstore.producer.settings import Settings
from shmstore.producer.settings_sources import add_flags, load_all, load_settings


def from_line(*line: str, environ: dict[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return load_settings(flags=vars(parser.parse_args(line)), environ=environ or {})


def test_every_option_is_a_flag_and_a_variable() -> None:
    """Every option but the secrets has a flag; every option has a variable; both give the same settings."""
    values: dict[str, Any] = {}
    line, environ = [], {}
    options = [option for option in dataclasses.fields(Settings) if option.name != "password_command"]  # not with a password
    for option in options:
        default = option.default
        choices = option.metadata["choices"]
        if option.name == "tls_key":
            value: Any = "k"
        elif option.name == "tls_cert":
            value = "c"
        elif option.name == "host":
            value = "db1:1,db2"
        elif option.name == "start":
            value = "binlog.000002:4"
        elif option.name == "operations":
            value = "insert,ddl"
        elif option.name == "row_filter":
            value = "shop.x: id > 1"
        elif option.name == "rename":
            value = "shop.y -> shop.x"
        elif option.name in ("log_keep", "log_size"):
            value = "90m"
        elif choices:
            value = choices[0]
        elif isinstance(default, bool):
            value = True
        elif isinstance(default, int):
            value = 2048
        elif isinstance(default, float):
            value = 2.5
        else:
            value = "shop.x" if isinstance(default, tuple) else "text"
        values[option.name] = value
        if option.name != "state":
            environ["SHMSTORE_" + option.name.upper()] = str(value)
        if option.metadata["flag"]:
            flag = "--" + option.name.replace("_", "-")
            line += [flag] if value is True else [flag, str(value)]
    environ["SHMSTORE_STATE"] = "elsewhere"  # the store's variable; not taken for the option
    one, other = from_line(*line), from_line(environ=environ)
    for option in options:
        if option.metadata["flag"] and option.name != "state":
            assert getattr(one, option.name) == getattr(other, option.name) != option.default or option.metadata["choices"]
    assert other.password == "text"
    assert one.operations == ("insert", "ddl")
    assert one.include == ("shop.x",)
    one = from_line("--store", "s", "--password-command", "text")
    other = from_line("--store", "s", environ={"SHMSTORE_PASSWORD_COMMAND": "text"})
    assert one.password_command == other.password_command == "text"


def test_flags_win_over_variables_over_the_file(tmp_path: Path) -> None:
    """Flag, then variable, then [source.NAME], then [producer], then the default."""
    file = tmp_path / "shmstore.toml"
    file.write_text(
        '[producer]\nuser = "file"\nport = 1\nread_timeout = 7\n[source.orders]\nport = 2\ninclude = ["a.*", "b.*"]\n'
        '[source.users]\nstore = "people"\nhost = "h"\n'
    )
    settings = load_settings(
        config=file, source="orders", flags={"user": "flag", "port": None}, environ={"SHMSTORE_PORT": "3", "SHMSTORE_USER": "env"}
    )
    assert (settings.store, settings.user, settings.port, settings.include, settings.read_timeout) == (
        "orders",
        "flag",
        3,
        ("a.*", "b.*"),
        7.0,
    )
    assert [one.store for one in load_all(config=file, environ={})] == ["orders", "people"]
    assert [one.port for one in load_all(config=file, environ={})] == [2, 1]
    with pytest.raises(SettingsError, match=r"several sources.*orders, users"):
        load_settings(config=file, environ={})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[producer]\nhots = 'x'", r"'hots' in .producer. is unknown; did you mean host\?"),
        ("[prodcer]\nhost = 'x'", r"\[prodcer\] is unknown; did you mean producer\?"),
        ("[source.a]\nport = 'many'", r"\[source\.a\]: port is 'many'; it must be a number"),
        ("[source.a]\nport = true", "port is True; it must be a number"),
        ("[source.a]\ninclude = [1]", "it must be a list of strings"),
        ("[source.a]\nddl_isolation = 'perhaps'", "it must be true or false"),
        ("[source.a]\npassword = 5", "password is the value; it must be text"),
        ("[source.a]\ntls = 'maybe'", "tls is 'maybe'; allowed: disabled, preferred"),
        ("[source.a]\ntls = 'require'", r"verify-identity; did you mean required\?"),
        ("[source.a]\nstart = 'latets'", r"did you mean latest\?"),
        ("[source.a]\ncapacity = 1000", "capacity is 1000; it must be a power of two"),
        ("[source.a]\nport = 0", "port is 0; it must be at least 1"),
        ("[source.a]\nhost = 'a:b'", "'a:b' is not HOST"),
        ("[source.a]\ninclude = ['a(']", "'a.' is no regular expression"),
        ("[source.a]\noperations = ['upsert']", "'upsert' is unknown"),
        ("[source.a]\ntls_cert = 'x'", "tls_cert and tls_key go together"),
        ("[source.a]\nstart = 'soon'", "start is 'soon', which is not understood: give latest, earliest, FILE:OFFSET"),
        ("[source.a]\nstart = 'time:today'", r"a time \(2026-01-31T12:00:00Z\)"),
        ("[source.a]\nstart = 'gtid:x:y'", "start is 'gtid:x:y': "),
        ("[source.a]\nstart = '4711'", "start is '4711', a sequence"),
        ("[source.a]\nbinlog = '/b'\nstart = '0-1-4'", "binlog files are read from FILE:OFFSET"),
        ("[source.a]\nx = ", "cannot be read"),
        ("source = 1", "write each source as"),
        ("producer = 1", r"under \[producer\]"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    """A key, type or value that is not allowed is one line that names it, and the nearest right one."""
    file = tmp_path / "shmstore.toml"
    file.write_text(text)
    with pytest.raises((SettingsError, ValueError), match=says) as caught:
        load_settings(config=file, environ={})
    assert "\n" not in str(caught.value)


def test_sources_of_one_store(tmp_path: Path) -> None:
    """Sources may share a store, as a group: their names differ, and what they say of the store does not."""
    file = tmp_path / "shmstore.toml"
    file.write_text("[source.a]\nstore = 's'\n[source.b]\nstore = 's'\n")
    assert [(one.store, one.name) for one in load_all(config=file, environ={})] == [("s", "a"), ("s", "b")]
    file.write_text("[source.a]\nstore = 's'\n[source.b]\nstore = 's'\ncapacity = 32\n")
    with pytest.raises(SettingsError, match=r"capacity is 0 in source 'a' and 32 in 'b', which share store 's'"):
        load_all(config=file, environ={})
    file.write_text("[source.a]\nstore = 's'\n[source.b]\nstore = 's'\nname = 'a'\n")
    with pytest.raises(SettingsError, match="store 's' has two sources named 'a'"):
        load_all(config=file, environ={})


def test_one_source_of_several(tmp_path: Path) -> None:
    """Asked for by name, one source is all there is; a file without any describes one itself."""
    file = tmp_path / "shmstore.toml"
    file.write_text("[source.a]\n[source.b]\nport = 2\n")
    assert [(one.store, one.port) for one in load_all(config=file, source="b", environ={})] == [("b", 2)]
    assert [one.store for one in load_all(flags={"config": file, "source": "a"}, environ={})] == ["a"]
    with pytest.raises(SettingsError, match=r"no \[source.c\]; it has a, b"):
        load_all(config=file, source="c", environ={})
    file.write_text("[producer]\nstore = 's'\n[source.a]\n[source.b]\n")
    with pytest.raises(SettingsError, match="source 'b' shares store 's' with 'a': run them together"):
        load_all(config=file, source="b", environ={})
    file.write_text("[producer]\nstore = 's'\n")
    assert [one.store for one in load_all(config=file, environ={})] == ["s"]
    file.write_text("[producer]\n")
    with pytest.raises(SettingsError, match="no store is named"):
        load_all(config=file, environ={})


@pytest.mark.parametrize("secret", ["password", "hash_key"])
def test_a_secret_that_others_may_read(tmp_path: Path, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file that holds a password or a key is warned of while every user may read it, and once for all its sources."""
    file = tmp_path / "shmstore.toml"
    file.write_text(f"[source.a]\n{secret} = 'geheim'\n[source.b]\n")
    file.chmod(0o644)
    load_all(config=file, environ={})
    (record,) = caplog.records
    assert record.getMessage() == (
        f"config {str(file)!r} holds {secret} and every user of this host may read it: chmod o-r {file}, or set SHMSTORE_{secret.upper()} instead"
    )
    caplog.clear()
    file.chmod(0o640)
    load_all(config=file, environ={})
    file.chmod(0o644)
    file.write_text("[source.a]\npassword_file = '/run/secret'\n")
    load_all(config=file, environ={})
    assert not caplog.records


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    """repr shows neither password nor key; the password comes from its file as it is now."""
    file = tmp_path / "secret"
    file.write_text("one\n")
    settings = Settings(store="s", password="geheim", hash_key="salz")
    assert "geheim" not in repr(settings)
    assert "salz" not in repr(settings)
    assert settings.secret() == "geheim"
    settings = Settings(store="s", password_file=str(file))
    assert settings.secret() == "one"
    file.write_text("two")
    assert settings.secret() == "two"


@pytest.mark.parametrize("other", [{"password": "a"}, {"password_file": "/run/secret"}])
def test_one_source_of_the_password(other: dict[str, str]) -> None:
    """A command with another password is refused: it would be unclear which of them counts."""
    with pytest.raises(SettingsError, match=f"password_command and {next(iter(other))} are both given: leave one out"):
        from_line(
            "--store", "s", "--password-command", "pass show db", environ={f"SHMSTORE_{k.upper()}": v for k, v in other.items()}
        )


def test_hosts() -> None:
    """Hosts come with their own port, IPv6 in brackets."""
    assert Settings(store="s", host="a, b:7,[::1]:8,[::2]").endpoints() == (("a", 3306), ("b", 7), ("::1", 8), ("::2", 3306))
