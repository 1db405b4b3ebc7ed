"""Settings: frozen dataclasses, filled from TOML, overridden by flags, unknown keys refused by name."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import sys
import textwrap
import threading
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autorep.errors import ConfigError

T = TypeVar("T")
_parsing = threading.Lock()  # tyro keeps the registry of the call that it is in for all threads


def nearest(word: str, valid: Sequence[str]) -> str:
    """The closest valid name as a hint, or the whole list when nothing is close."""
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid names: {', '.join(sorted(valid))}"


def from_mapping(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build the settings dataclass `cls` from plain values; nested tables become nested dataclasses.

    Raises ConfigError that names the key, the place (`where`) and the nearest valid key.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]  # T is a dataclass
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(name, list(fields))}")
        arguments[name] = _convert(hints[name], value, f"{where}: {key}")
    try:
        return cls(**arguments)
    except TypeError as error:
        missing = [f.name for f in fields.values() if _required(f) and f.name not in arguments]
        raise ConfigError(f"{where}: missing {', '.join(missing) or error}") from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file, or a ConfigError that says where it does not parse."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def parse(cls: type[T], arguments: Sequence[str], prog: str) -> T:
    """Command-line settings: defaults, then a recipe, then `--config FILE.toml`, then flags, later ones winning.

    A yes-or-no setting is a flag, --resume or --no-resume; --resume True does the same.

    A class with recipes has a setting `recipe` and a function `recipes()`: name -> values.
    """
    import tyro

    rest, config = _split_config(list(arguments), prog)
    values = read_toml(config) if config else {}
    if hasattr(cls, "recipes"):
        values = _with_recipe(cls.recipes(), values, rest)  # type: ignore[attr-defined]  # hasattr says so
    help_text = f"{inspect.getdoc(cls)}\n\n--config FILE.toml reads settings from a file; flags come on top of it."
    options: dict[str, Any] = {"prog": prog, "description": help_text}
    if values and _complete(cls, values):
        options["default"] = from_mapping(cls, values, str(config or prog))
    elif config:
        rest = _as_flags(cls, values, str(config)) + rest
    with _parsing:
        return tyro.cli(cls, args=_yes_or_no(cls, rest), registry=_flowing_help(), **options)


def _flowing_help() -> Any:
    """How tyro takes our settings apart: as it would, but for help texts, whose lines it would break where ours end."""
    import tyro
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

    registry = ConstructorRegistry()

    @registry.struct_rule
    def settings(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not dataclasses.is_dataclass(info.type):
            return None
        texts = {name: text for base in reversed(info.type.__mro__[:-1]) for name, text in _texts(base)}
        hints = typing.get_type_hints(info.type, include_extras=True)
        fields = []
        for field in (f for f in dataclasses.fields(info.type) if f.init):
            if isinstance(info.default, info.type):
                default = getattr(info.default, field.name)
            else:
                default = tyro.MISSING if _required(field) else _default(field)
            fields.append(StructFieldSpec(field.name, hints[field.name], default, texts.get(field.name)))
        return StructConstructorSpec(info.type, tuple(fields))

    return registry


def _texts(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """What stands below each setting in the class's source, as one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:]):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def to_mapping(settings: Any) -> dict[str, Any]:
    """Plain JSON-able values of a settings dataclass (paths as strings)."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return str(value) if isinstance(value, Path) else value

    return plain(settings)


def _with_recipe(
    recipes: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any], rest: Sequence[str]
) -> dict[str, Any]:
    """A file's values on top of those of the recipe that it or a flag names."""
    joined = [argument.split("=", 1) for argument in rest if argument.startswith("--recipe=")]
    flags = [after for flag, after in zip(rest, rest[1:]) if flag == "--recipe"] + [value for _, value in joined]
    name = flags[-1] if flags else values.get("recipe")
    if name is None:
        return dict(values)
    if name not in recipes:
        raise ConfigError(f"recipe = {name}: no such recipe; {nearest(str(name), list(recipes))}")
    return {**recipes[name], **values, "recipe": name}


def _yes_or_no(cls: type[Any], arguments: Sequence[str]) -> list[str]:
    """`--name True` and `--name False` of a yes-or-no setting as --name and --no-name."""
    switches = {f.name.replace("_", "-") for f in dataclasses.fields(cls) if f.type in ("bool", bool)}
    result: list[str] = []
    for argument in arguments:
        before = result[-1].removeprefix("--").replace("_", "-") if result and result[-1].startswith("--") else ""
        if before in switches and argument in ("True", "False"):
            result[-1] = f"--{before}" if argument == "True" else f"--no-{before}"
        else:
            result.append(argument)
    return result


def _split_config(arguments: list[str], prog: str) -> tuple[list[str], Path | None]:
    config = None
    rest: list[str] = []
    queue = iter(arguments)
    for argument in queue:
        if argument == "--config":
            value = next(queue, None)
            if value is None:
                raise ConfigError(f"{prog}: --config needs a TOML file")
            config = Path(value)
        elif argument.startswith("--config="):
            config = Path(argument.split("=", 1)[1])
        else:
            rest.append(argument)
    return rest, config


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _complete(cls: type[Any], values: Mapping[str, Any]) -> bool:
    given = {key.replace("-", "_") for key in values}
    return all(f.name in given for f in dataclasses.fields(cls) if f.init and _required(f))


def _as_flags(cls: type[Any], values: Mapping[str, Any], where: str) -> list[str]:
    """Flat keys as flags, for a command whose required settings are still to come from the command line."""
    names = [f.name for f in dataclasses.fields(cls)]
    flags: list[str] = []
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(name, names)}")
        parts = value if isinstance(value, list) else [value]
        flags += [f"--{name.replace('_', '-')}", *(str(part) for part in parts)]
    return flags


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _convert(options[0], value, where)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(options, value, where)
    if origin is typing.Literal:
        if value not in options:
            raise ConfigError(f"{where} = {value!r}; {nearest(str(value), [str(o) for o in options])}")
        return value
    if origin is tuple:
        return tuple(_convert(options[0], item, where) for item in value)
    if dataclasses.is_dataclass(hint):
        return from_mapping(typing.cast(type, hint), value, where)
    if hint is Path:
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ConfigError(f"{where} = {value!r} is of type {type(value).__name__}; expected {hint.__name__}")
    return value


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    errors = []
    for option in options:
        if option is types.NoneType:
            if value is None:
                return None
            continue
        try:
            return _convert(option, value, where)
        except (ConfigError, TypeError) as error:
            errors.append(str(error))
    raise ConfigError("; ".join(errors) or f"{where}: {value!r} is not valid here")


def require(valid: bool, name: str, value: object, what: str) -> None:
    """Raise a ConfigError that names the setting and what would be valid."""
    if not valid:
        raise ConfigError(f"{name} = {value}; valid: {what}")


def warn(message: str) -> None:
    """One line on standard error that does not mix with results on standard output."""
    print(f"autorep: {message}", file=sys.stderr)
