"""The README and docs/: commands that exist, Python that compiles, links that lead somewhere, no error class and no option left out."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import re
import shlex
import tomllib
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from scripts.documentation import generated, samples
from shmstore import errors
from shmstore.cli.command_line import commands as every_command
from shmstore.cli.config_file import problems
from shmstore.cli.options import FORMATS
from shmstore.consumer.copies import copying
from shmstore.producer import errors as producer_errors
from shmstore.producer import load_all
from shmstore.producer.settings import GROUPS, Settings
from tests.docs.pages import PAGES, README, ROOT, Block, anchors, blocks, command_lines, page_of, prose

TROUBLESHOOTING = page_of("troubleshooting")
IDS = {page: page.relative_to(ROOT).as_posix() for page in PAGES}


def spark_arguments() -> argparse.ArgumentParser:
    from shmstore.consumer.spark.__main__ import arguments

    return arguments()


def commands(page: Path) -> list[list[str]]:
    """The words of each `shmstore ...` line of a page's console and shell blocks, without variables and what a pipe takes."""
    found = []
    for line in command_lines(page):
        words = [word for word in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
        if words and words[0] == "shmstore" and words[1] != "--version":
            found.append(words[1 : words.index("|") if "|" in words else None])
    return found


def command_of(words: list[str]) -> str:
    """The command that words begin with: `log` and `config` have commands of their own."""
    return " ".join(words[: 2 if words[0] in ("log", "config") else 1])


@pytest.mark.parametrize("page", PAGES, ids=IDS.values())
def test_commands_parse(page: Path) -> None:
    """Every `shmstore ...` line is accepted by the real command line."""
    for words in commands(page):
        parsed = every_command().parser.parse_args(words)
        assert parsed.run is every_command().by_name[command_of(words)].get_default("run"), words
        if words[0] == "spark":
            spark_arguments().parse_args(words[1:])


def test_there_are_commands() -> None:
    """Every command but the help of `spark` is shown somewhere, so that the test above has something to look at."""
    shown = {command_of(words) for page in PAGES for words in commands(page)}
    assert shown >= every_command().by_name.keys() - {"check", "ls"}
    assert len(commands(README)) >= 4


def flags(command: argparse.ArgumentParser) -> set[str]:
    return {flag for action in command._actions for flag in action.option_strings}


def every_flag() -> set[str]:
    """The flags of all commands."""
    found = {"--help", "--version"}
    for sub in every_command().by_name.values():
        if sub.fill:
            sub.fill(sub)
        found |= flags(sub)
    for action in spark_arguments()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for sub in action.choices.values() for flag in flags(sub)}
    return found


def test_flags_exist() -> None:
    """Each `--flag` that the text of a page names belongs to a command, or to a script of the checkout."""
    scripts = {
        "--pure",
        "--long",
        "--fix",
        "--shop",
        "--serve",
        "--readers",
        "--kill",
        "--keep",
        "--against",
        "--json",
        "--chart",
    }
    known = every_flag() | scripts | {"--verify-binlog-checksum"}  # of mariadb-binlog
    for page in PAGES:
        for span in re.findall(r"`([^`\n]+)`", prose(page)):
            for flag in re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", span):
                assert flag in known, f"{IDS[page]}: {span}"
        for name in re.findall(r"`shmstore ([a-z]+)", prose(page)):
            assert name in {each.split()[0] for each in every_command().by_name}, f"{IDS[page]}: shmstore {name}"


def test_scripts_exist() -> None:
    """Each script that a page names is there."""
    for page in PAGES:
        for name in re.findall(r"\bscripts/([a-z]+)\b", page.read_text(encoding="utf-8")):
            assert (ROOT / "scripts" / name).exists(), f"{IDS[page]}: scripts/{name}"


PYTHON = blocks(language="python")


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_its_imports_resolve(block: Block) -> None:
    """A block of Python compiles, and imports only names that exist."""
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                there = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                assert there, f"{block}: {node.module} has no {alias.name}"


@pytest.mark.parametrize("block", blocks(language="toml"), ids=str)
def test_configurations_load(block: Block, tmp_path: Path) -> None:
    """A configuration file is accepted, key by key."""
    tomllib.loads(block.text)
    (tmp_path / "shmstore.toml").write_text(block.text)
    assert problems(str(tmp_path / "shmstore.toml"), every_command().by_name, files=False) == []
    if "[source" in block.text or "[producer" in block.text:
        assert load_all(config=tmp_path / "shmstore.toml", environ={})


@pytest.mark.parametrize("page", PAGES, ids=IDS.values())
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file of the checkout, and a heading where it has an anchor."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{IDS[page]}: {link}"
        assert not anchor or anchor in anchors(found), f"{IDS[page]}: {link}"


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs.yml names each page, and no other."""
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md"))


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("**/*.md")), ids=lambda path: path.name)
def test_each_page_says_whom_it_is_for(path: Path) -> None:
    """The line below the title begins with For; a page that is not looked up is read in five minutes."""
    title, empty, first, *_ = path.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert empty == ""
    assert first.startswith("For "), first
    if path.parent.name in ("how-to", "explanation"):
        assert len(generated.MARKED.sub("", prose(path)).split()) < 1300, "cut it up"


def test_the_readme_is_short() -> None:
    """One screen: what is longer belongs on a page."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 70


# ---------------------------------------------------------------- generated parts


def classes(module: object) -> set[str]:
    found = inspect.getmembers(module, inspect.isclass)
    return {name for name, one in found if issubclass(one, errors.ShmStoreError) and one.__module__ == module.__name__}  # type: ignore[attr-defined]


def test_each_error_class_has_its_entry() -> None:
    """Troubleshooting has a heading for each error class, with its messages."""
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    heads = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    wanted = classes(errors) | classes(producer_errors) | {"OptionError"}
    assert sorted(heads) == sorted(wanted)
    for name in wanted:
        _, _, entry = text.partition(f"### {name}\n")
        assert f"<!-- generated: messages {name} -->" in entry.partition("\n### ")[0], name
        assert generated.messages(name).startswith("- `"), f"{name} is raised nowhere"


@pytest.mark.parametrize(
    "text", ["has no free space for … events of … bytes", "has a reader already (pid …)", "unknown option …"]
)
def test_messages_are_found_by_their_text(text: str) -> None:
    """A message of the code stands on the page as it is printed, with … for values."""
    assert text in generated.filled(TROUBLESHOOTING.read_text(encoding="utf-8"))


def test_each_option_stands_in_one_group() -> None:
    """The producer's page has every option once, with its help text."""
    counted = Counter(name for names in GROUPS.values() for name in names.split())
    assert counted == Counter(option.name for option in fields(Settings))
    page = generated.filled(page_of("producer-options").read_text(encoding="utf-8"))
    for option in fields(Settings):
        name = f"`--{option.name.replace('_', '-')}`" if option.metadata["flag"] else f"`SHMSTORE_{option.name.upper()}`"
        assert f"| {name} |" in page


def test_each_option_of_spark_is_there() -> None:
    """The Spark page has every option of the source."""
    from shmstore.consumer.spark.options import HELP

    page = generated.filled(page_of("spark-options").read_text(encoding="utf-8"))
    assert [name for name in HELP if f"| `{name}` |" not in page] == []


def test_alerts_name_metrics_that_exist() -> None:
    """Each metric that the pages name is one that `shmstore metrics` prints, or `serve`, or `replicate`, or that the rules record."""
    known = set(re.findall(r"`(shmstore_\w+)`", generated.metrics() + generated.serve_metrics()))
    known |= set(re.findall(r"# TYPE (\w+)", copying.CopyingCounters().exposition("orders", "replicate")))
    known |= set(re.findall(r"record: (\S+)", (ROOT / "deploy/prometheus/shmstore.rules.yml").read_text()))
    assert len(known) > 30
    for page in PAGES:
        for name in re.findall(r"(?<![\w:])((?:\w+:)?shmstore_(?!test)\w+(?::\w+)?)", prose(page)):
            assert name in known, f"{IDS[page]}: {name}"


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_shown(format: str) -> None:
    """The page on formats has a chapter for each, with real documents: an insert, an update and a DDL at least."""
    page = page_of("formats").read_text(encoding="utf-8")
    assert f"<!-- generated: example {format} -->" in page
    assert len(samples.documents(format)) >= 3
    assert samples.shown(format) in generated.filled(page)


def test_every_generated_part_is_known() -> None:
    """No page has a mark that nothing fills; what lies between marks is made again, and `scripts/check` names a page that is out of date."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- generated") == len(generated.MARKED.findall(text)) == text.count("<!-- end -->"), IDS[page]
    old = "<!-- generated: refusals -->\n\nwas so before\n\n<!-- end -->"
    assert "was so before" not in generated.filled(old)
    assert generated.filled(generated.filled(old)) == generated.filled(old)


def test_each_check_of_doctor_has_its_line() -> None:
    """Troubleshooting has a line for each check that `shmstore doctor` makes."""
    source = (ROOT / "producer" / "doctor.py").read_text(encoding="utf-8")
    names = set(re.findall(r'Finding\(\s*"([\w ]+)"', source)) | set(re.findall(r'_is\(server, "(\w+)"', source))
    names |= set(re.findall(r'\bname(?:, \w+)? = "([\w ]+)"', source))
    assert len(names) >= 15
    page = TROUBLESHOOTING.read_text(encoding="utf-8")
    assert [name for name in sorted(names) if f"\n| `{name}` |" not in page] == []


def test_refusals_are_shown() -> None:
    """What bad input is answered with stands on the page."""
    assert "is not HOST:PORT, such as 127.0.0.1:11111" in generated.refusals()
