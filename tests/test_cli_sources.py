"""The command line overrides variables, and variables override the configuration file: for all
options of all commands, as the commands themselves list them."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from specqd.cli.app import app
from specqd.cli.command import Model, Option
from specqd.cli.settings import read_settings
from support.command_line import Run

# Three values for options whose text has a syntax of its own.
_WRITTEN = {
    "allow_origin": ["http://a", "http://b", "http://c"],
    "keep_alive": [1, 2, 3],
    "memory": [10 << 20, 11 << 20, 12 << 20],
    "model": ["one", "two", "three"],
    "prompt_cache_size": [10 << 20, 11 << 20, 12 << 20],
    "draft": ["fp4", "ngram", "none"],
    "word": ["mtp", "mtp:fp4", "mtp:bf16"],
    "size": ["8g", "16g", "here"],
    "schema": ['{"type": "null"}', '{"type": "string"}', '{"type": "array"}'],
}


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all commands, such as ("bench", "levels")."""
    for name, command in group.commands.items():
        inner = (*path, name)
        yield from leaves(command, inner) if isinstance(command, click.Group) else [inner]


def command_at(path: tuple[str, ...]) -> click.Command:
    found: click.Command = app
    for name in path:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    return found


def has_sources(parameter: click.Parameter) -> bool:
    """Whether variables and the file may set it: all options but files of measurements, and MODEL
    where it has a default."""
    is_option = isinstance(parameter, click.Option) and parameter.expose_value
    is_option &= parameter.name != "json_file"
    return is_option or isinstance(parameter, Model)


CASES = [
    pytest.param(path, parameter.name, id=f"{'-'.join(path)}-{parameter.name}")
    for path in leaves(app)
    for parameter in command_at(path).params
    if has_sources(parameter)
]


class Sources:
    """One command, and the three places that may set one of its parameters."""

    def __init__(
        self, path: tuple[str, ...], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.path, self.name, self.folder = path, name, folder
        self.command = command_at(path)
        [self.parameter] = [each for each in self.command.params if each.name == name]
        self.key = max(self.parameter.opts, key=len).lstrip("-")
        self.variable = f"SPECQD_{self.key.replace('-', '_').upper()}"
        self._patch = monkeypatch
        self._file = folder / "config.toml"
        self._file.touch()
        monkeypatch.setenv("SPECQD_CONFIG", str(self._file))

    def values(self, parameter: click.Parameter) -> list[Any]:
        """Three valid values, as TOML has them."""
        kind = parameter.type
        if is_flag(parameter):
            return [True, True, True]
        if isinstance(kind, click.Choice):
            return [kind.choices[i % len(kind.choices)] for i in range(3)]
        if parameter.name in _WRITTEN:
            return _WRITTEN[parameter.name]
        if isinstance(kind, click.Path):
            paths = [self.folder / f"{parameter.name}-{i}" for i in range(3)]
            for path in paths:
                path.touch() if kind.file_okay else path.mkdir(exist_ok=True)
            return [str(path) for path in paths]
        if isinstance(kind, click.types.IntParamType):
            least = getattr(kind, "min", None) or 1
            return [least + i for i in range(3)]
        if isinstance(kind, click.types.FloatParamType):
            return [1.0, 1.5, 2.0]
        assert kind is click.STRING, f"{parameter.name}: add values of {kind} here"
        return ["one", "two", "three"]

    def parsed(
        self, *, file: Any = None, variable: Any = None, typed: Any = None
    ) -> dict[str, Any]:
        """All values of the command, of which the three places set this one."""
        self.write(file)
        if variable is None:
            self._patch.delenv(self.variable, raising=False)
        else:
            self._patch.setenv(self.variable, str(variable))
        return self.params({} if typed is None else {self.name: typed}, self._needed())

    def write(self, value: Any) -> None:
        """Writes the file, with this value of the option unless it is None."""
        text = "" if value is None else f"{json.dumps(self.key)} = {json.dumps(value)}\n"
        self._file.write_text(f"[{'.'.join(self.path)}]\n{text}")

    def params(self, typed: dict[str, Any], needed: Sequence[str] = ()) -> dict[str, Any]:
        """All values of the command with these on its command line, and what it requires."""
        words: list[str] = []
        least = {each.name for each in self.command.params if each.required} | {*needed}
        least -= {self.name}
        arguments = [each for each in self.command.params if isinstance(each, click.Argument)]
        last = max((i for i, each in enumerate(arguments) if each.name in typed), default=0)
        least |= {each.name for each in arguments[:last]}  # before the one that is typed
        for each in self.command.params:
            if each.name in typed or each.name in least:
                value = typed.get(each.name, self.values(each)[0])
                words += [str(value)] if each in arguments else _option_words(each, value)
        parent = click.Context(app, info_name="specqd", default_map=read_settings(app))
        for name in self.path[:-1]:
            parent = click.Context(command_at((name,)), parent, info_name=name)
        with self.command.make_context(self.path[-1], words, parent=parent) as context:
            return context.params

    def _needed(self) -> list[str]:
        needed = getattr(self.parameter, "needs", None)
        return [needed] if needed else []


def is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag


def _option_words(option: click.Parameter, value: Any) -> list[str]:
    name = max(option.opts, key=len)
    return [name] if is_flag(option) else [f"{name}={value}"]


@pytest.fixture
def sources(
    path: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Sources:
    for variable in [each for each in os.environ if each.startswith("SPECQD_")]:
        monkeypatch.delenv(variable)
    return Sources(path, name, tmp_path, monkeypatch)


@pytest.mark.filterwarnings("ignore:--threads")
@pytest.mark.parametrize(("path", "name"), CASES)
def test_the_command_line_wins_over_variables_and_these_over_the_file(sources: Sources) -> None:
    if is_flag(sources.parameter):
        assert sources.parsed(file=True)[sources.name] is True
        assert sources.parsed(file=True, variable=0)[sources.name] is False
        assert sources.parsed(file=False, variable=1)[sources.name] is True
        assert sources.parsed(file=False, variable=0, typed=True)[sources.name] is True
        return
    first, second, third = sources.values(sources.parameter)
    typed = [sources.parsed(typed=each)[sources.name] for each in (first, second, third)]
    assert len({repr(each) for each in typed[:2]}) == 2
    assert sources.parsed(file=first)[sources.name] == typed[0]
    assert sources.parsed(file=first, variable=second)[sources.name] == typed[1]
    assert sources.parsed(file=second, typed=first)[sources.name] == typed[0]
    assert sources.parsed(file=first, variable=second, typed=third)[sources.name] == typed[2]


@pytest.mark.parametrize("command", ["pull", "rm", "pack"])
def test_no_source_names_the_model_of_a_command_that_requires_one(
    run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('model = "owner/name"\n')
    monkeypatch.setenv("SPECQD_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("SPECQD_MODEL", "owner/name")
    status, _, err = run(command)
    assert status == 2
    assert "Missing argument 'MODEL'" in err


def both(command: click.Command) -> Iterator[tuple[str, str]]:
    """Parameters that cannot be combined."""
    for option in command.params:
        for other in getattr(option, "excludes", ()):
            yield str(option.name), other


EXCLUDED = [
    pytest.param(path, *pair, id=f"{'-'.join(path)}-{'-'.join(pair)}")
    for path in leaves(app)
    for pair in both(command_at(path))
]


@pytest.mark.parametrize(("path", "name", "other"), EXCLUDED)
def test_of_two_that_exclude_each_other_the_typed_one_is_taken(
    sources: Sources, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = Sources(sources.path, other, sources.folder, monkeypatch)
    ours, theirs = (each.values(each.parameter)[1] for each in (sources, rival))
    with pytest.raises(click.UsageError, match="cannot be combined"):
        sources.params({sources.name: ours, other: theirs})
    if has_sources(rival.parameter):
        alone = sources.params({sources.name: ours})
        monkeypatch.setenv(rival.variable, str(theirs))
        assert sources.params({sources.name: ours}) == alone


NEEDING = [
    pytest.param(path, each.name, id=f"{'-'.join(path)}-{each.name}")
    for path in leaves(app)
    for each in command_at(path).params
    if isinstance(each, Option) and each.needs
]


@pytest.mark.parametrize(("path", "name"), NEEDING)
def test_an_option_without_the_one_it_needs_is_refused_only_where_it_is_typed(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = sources.values(sources.parameter)[1]
    with pytest.raises(click.UsageError, match=" needs "):
        sources.params({sources.name: value})
    plain = sources.params({})
    monkeypatch.setenv(sources.variable, str(value))
    assert sources.params({}) == plain
    monkeypatch.delenv(sources.variable)
    sources.write(value)
    assert sources.params({}) == plain


def test_a_key_of_the_file_is_no_negative_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[chat]\nno-think = true\n")
    monkeypatch.setenv("SPECQD_CONFIG", str(tmp_path / "config.toml"))
    assert "'no-think' is no option of chat; did you mean think?" in run("chat")[2]
