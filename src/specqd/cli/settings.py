"""The configuration file: defaults of options, for all commands or for one.

A key is an option's name; a table is named after a command. Click does the rest.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from specqd.errors import ConfigError, shown


def settings_file() -> Path:
    """`$SPECQD_CONFIG`, else `specqd/config.toml` in the user's directory of configurations."""
    if named := os.environ.get("SPECQD_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or home_directory() / ".config"
    return Path(home) / "specqd" / "config.toml"


def home_directory() -> Path:
    """The user's; where there is none, as in some containers, one that does not exist."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def read_settings(app: click.Group) -> dict[str, Any]:
    """Click's `default_map` of the commands. Empty without a file, unless one is named; raises
    ConfigError. In place of a value for all commands that one does not take, it has the error for
    that one."""
    path = settings_file()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        if os.environ.get("SPECQD_CONFIG"):
            problem = "is missing; correct SPECQD_CONFIG, or unset it"
            raise ConfigError(f"{path}: {problem}") from error
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    shared = {name: value for name, value in table.items() if name not in app.commands}
    known = {word for command in _commands(app) for word in _words(command)}
    for name in shared:
        if _word(name) not in known:
            raise ConfigError(f"{path}: {shown(name)} is no option or command{_near(name, known)}")
    return _group(path, app, table, shared)


def all_names(parameter: click.Parameter) -> list[str]:
    """The names of an option, the hidden ones included."""
    return [*parameter.opts, *parameter.secondary_opts, *getattr(parameter, "also", ())]


def _group(
    path: Path, group: click.Group, table: Mapping[str, Any], shared: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        own = table.get(name, {})
        if not isinstance(own, dict):
            raise ConfigError(f"{path}: {name} is a command; write a table, [{name}]")
        if isinstance(command, click.Group):
            found[name] = _group(path, command, own, shared)
        else:
            found[name] = _command(path, name, command, own, shared)
    return found


def _command(
    path: Path,
    name: str,
    command: click.Command,
    own: Mapping[str, Any],
    shared: Mapping[str, Any],
) -> dict[str, Any]:
    words = _words(command)
    for key in own:
        if _word(key) not in words:
            problem = f"{shown(key)} is no option of {name}{_near(key, words)}"
            raise ConfigError(f"{path}: [{name}]: {problem}")
    found: dict[str, Any] = {}
    for key, value in shared.items():
        if parameter := words.get(_word(key)):
            try:
                found[parameter.name] = _value(path, key, parameter, value)
            except ConfigError as error:  # other commands may take it
                found[parameter.name] = error
    for key, value in own.items():
        parameter = words[_word(key)]
        found[parameter.name] = _value(path, key, parameter, value)
    return found


def _value(path: Path, key: str, parameter: click.Parameter, value: Any) -> Any:
    """A value of the file as click takes it: it would cut 2.9 to 2 where a whole number is due."""
    takes_many = getattr(parameter, "multiple", False) or parameter.nargs != 1
    values = value if isinstance(value, list) and takes_many else [value]
    is_flag = getattr(parameter, "is_flag", False)
    is_text = isinstance(parameter.type, click.types.StringParamType)
    for each in values:
        is_plain = isinstance(each, str | int | float) or (isinstance(each, dict) and is_text)
        if not is_plain or (isinstance(each, bool) and not is_flag):
            raise ConfigError(
                f"{path}: {key}: {shown(value)} is no value of this option; see --help"
            )
    if not is_flag:
        values = [str(each) if isinstance(each, float) else each for each in values]
    return values if takes_many else values[0]


def _commands(group: click.Group) -> list[click.Command]:
    found: list[click.Command] = []
    for command in group.commands.values():
        found += _commands(command) if isinstance(command, click.Group) else [command]
    return found


def _words(command: click.Command) -> dict[str, click.Parameter]:
    """The names of a command's options, with the parameter that each one sets. Of the arguments,
    only MODEL has a name here, and only if it has a default."""
    words: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if parameter.expose_value and parameter.envvar:
            names = [*parameter.opts, *getattr(parameter, "also", ())]  # not --no-think
            words |= {_word(name): parameter for name in names}
    return words


def _word(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _near(name: str, known: Any) -> str:
    found = get_close_matches(_word(name), sorted(known), n=1)
    return f"; did you mean {found[0]}?" if found else "; see --help"
