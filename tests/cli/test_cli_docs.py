"""docs/cli.md names every command and every option that is not hidden."""

from pathlib import Path

import click
import pytest

from sparklog.cli.main import cli

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
COMMON = {"--root", "--bootstrap-server", "--output", "--debug", "--help", "--version"}
COMMON |= {"--allow-unsafe-filesystem", "--cluster-id", "--command-config", "--watch"}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += commands(command, (*words, name))
        else:
            found.append((" ".join((*words, name)), command))
    return found


ALL = commands(cli)


@pytest.mark.parametrize("name", [name for name, _ in ALL])
def test_command_is_documented(name: str) -> None:
    command = dict(ALL)[name]
    section = DOCUMENT.split(f"\n## {name.split(maxsplit=1)[0]}\n")[1].split("\n## ")[0]
    assert " " not in name or name.split()[1] in section
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            long_names = [option for option in parameter.opts if option.startswith("--")]
            assert COMMON & set(long_names) or any(option in section for option in long_names), long_names


def test_every_command_has_help() -> None:
    for name, command in ALL:
        assert command.help, name


EXAMPLES = {
    "": [
        "Start with:  sparklog demo",
        "On a log:    sparklog --root DIR topics list        (or SPARKLOG_ROOT=DIR)",
    ],
    "consume": [r"sparklog consume --topic flights -f '%p:%o %k %s\n' -c 10"],
    "produce": [
        "seq 1000 | sparklog produce --topic numbers",
        """echo 'JFK:{"delay": 5}' | sparklog produce --topic delays -K:""",
    ],
}


@pytest.mark.parametrize("name", ["", *(name for name, _ in ALL)])
def test_help_shows_examples_as_they_are_typed(name: str) -> None:
    command = dict(ALL).get(name, cli)
    shown = command.get_help(click.Context(command, info_name="sparklog"))
    assert "\\b" not in shown
    assert set(EXAMPLES.get(name, [])) <= {line.strip() for line in shown.splitlines()}
