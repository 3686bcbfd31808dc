"""Make a command line from a configuration object: each field is a flag, and its docstring is the flag's help."""

import enum
import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticUndefined

from harbor_gym.cli import completion
from harbor_gym.cli.plain_help import COMMON, HelpAll
from harbor_gym.errors import UsageError

_LONGEST_HELP = 160
_CHOICES_IN_SIGHT = 4
"""More choices than these would make the table of ``--help`` too wide; they are listed in the flag's text."""

_PLAIN_TYPES = (int, float, str, Path)
_NONE = "none"
"""The flag's value for None, if None is not its default."""

type Parser = Callable[[Any], Any]

type Completion = Callable[[str], list[str]]
"""Takes what is typed so far, a parameter ``incomplete``; returns what it may become."""


@dataclass(frozen=True)
class Spelling:
    """The spelling of a model's fields on a command line. Keys are dotted paths, such as ``env.sandbox``."""

    names: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Field → its flag without leading dashes, or None for no flag. By default the flag has the field's name."""

    prefixes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nested model → prefix of its flags."""

    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nested model or field → its group in ``--help``. Fields may also name a group in ``json_schema_extra``."""

    parsers: Mapping[str, Parser] = field(default_factory=dict[str, Parser])
    """Field → function that parses its text, or the list of its texts if the flag is repeatable."""

    defaults: Mapping[str, str] = field(default_factory=dict[str, str])
    """Field → its default in ``--help``, if that is not a constant."""

    with_commas: Collection[str] = ()
    """Fields with several values, which their flag takes as one comma-separated text."""

    also: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Field → further spellings of its flag with their dashes: a letter, a common name, an earlier name."""

    completions: Mapping[str, Completion] = field(default_factory=dict[str, Completion])
    """Field → function that completes its value in a shell."""

    common: Collection[str] = ()
    """Fields whose flags ``--help`` explains; ``--help-all`` explains the others. If empty, ``--help`` explains all."""


@dataclass(frozen=True)
class Flag:
    """One field as a flag."""

    path: tuple[str, ...]
    name: str
    group: str | None
    info: FieldInfo
    parser: Parser | None
    shown_default: str | None
    has_commas: bool
    also: tuple[str, ...]
    completion: Completion | None

    @property
    def dotted(self) -> str:
        """The field's dotted path."""
        return ".".join(self.path)

    @property
    def parameter(self) -> str:
        """The name of the command's parameter."""
        return "__".join(self.path)

    @property
    def default(self) -> Any:
        """The field's default; None if it has none, or if it is computed."""
        default = self.info.get_default()
        return None if default is PydanticUndefined else default

    def option(self) -> inspect.Parameter:
        """Return the flag as a parameter of a typer command."""
        kind, default, extra = self._kind()
        name = f"--{self.name}/--no-{self.name}" if kind is bool else f"--{self.name}"
        extra["show_default"] = self.shown_default is None  # else the help has its own text
        option = typer.Option(
            name,
            *self.also,
            help=self._help(is_repeatable=default == []),
            rich_help_panel=self.group,
            autocompletion=self.completion,
            **extra,
        )
        annotation = Annotated[kind if default is not None or kind is bool else kind | None, option]
        return inspect.Parameter(self.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def read(self, value: Any) -> Any:
        """Convert the value that typer read into the field's value.

        Raises:
            UsageError: The text can't be read.
        """
        if isinstance(value, enum.Enum):
            value = value.value
        if value == "" != self.default and not self.has_commas:  # a shell's variable without a value
            raise UsageError(f"--{self.name} is empty: give it a value, or leave it out")
        if self.has_commas:
            value = [part.strip() for part in value.split(",") if part.strip()]
        return value if self.parser is None else self.parser(value)

    @property
    def _choices(self) -> list[str]:
        """The values that the flag allows; empty if it allows any."""
        members, _ = _members(self.info.annotation)
        if len(members) == 1 and get_origin(members[0]) is Literal:
            return list(get_args(members[0]))
        if len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], enum.StrEnum):
            return [member.value for member in members[0]]
        return []

    def _help(self, *, is_repeatable: bool) -> str:
        """Return the field's docstring if it is short, else its first sentence."""
        text = " ".join((self.info.description or "").split())
        text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
        if len(text) > _LONGEST_HELP:
            text = re.split(r"(?<=\.) ", text, maxsplit=1)[0]
        text += f" One of {', '.join(self._choices)}." if len(self._choices) > _CHOICES_IN_SIGHT else ""
        text += " Repeatable." if is_repeatable else ""
        text += f" [default: {self.shown_default}]" if self.shown_default is not None else ""
        return text.replace("[", r"\[")  # typer reads text in brackets as a style

    def _kind(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return the parameter's type, its default, and further settings of the option."""
        members, is_optional = _members(self.info.annotation)
        default = self.default
        origin = get_origin(members[0]) or members[0]
        if self.has_commas:
            return str, ",".join(map(str, default)), {}
        if origin is dict:
            return list[str], [], {"metavar": "<NAME=VALUE>"}
        if len(members) == 1 and origin is tuple:
            return list[str], [], {"metavar": "<str>"}
        if self.parser is not None or len(members) > 1:
            return str, default, {}
        (member,) = members
        if self._choices:
            kind = enum.StrEnum(self.parameter, {text: text for text in self._choices})
            return kind, default, {"metavar": "<name>"} if len(self._choices) > _CHOICES_IN_SIGHT else {}
        if is_optional and default is not None and member in _PLAIN_TYPES:
            return str, str(default), {"parser": _or_none(member), "metavar": f"<{member.__name__}|{_NONE}>"}
        if member is bool or member in _PLAIN_TYPES:
            return member, default, {}
        raise TypeError(f"{self.dotted}: no flag can be made of {self.info.annotation}")


def flags_of(model: type[BaseModel], spelling: Spelling) -> list[Flag]:
    """Return the flags of a model in the order of its fields, followed by those of nested models.

    A field that may hold one of several models has the flags of all of them.

    Raises:
        TypeError: Two fields have the same flag, or a field has an unsupported type.
    """
    flags = _flags(model, (), spelling)
    names = [flag.name for flag in flags]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"two fields are called --{', --'.join(sorted(twice))}")
    return flags


def add_flags(command: Callable[..., None], flags: Sequence[Flag], *, first: Sequence[inspect.Parameter] = ()) -> None:
    """Give ``command(context, **values)`` the flags as its parameters, for typer to read.

    Args:
        command: Called with the context, and every flag's value under the flag's ``parameter``.
        flags: The result of :func:`flags_of`.
        first: Parameters before the flags, such as an argument.
    """
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *first, *(flag.option() for flag in flags)]
    if any(flag.group == COMMON for flag in flags):
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("_help_all", kind, annotation=HelpAll, default=False))
    described = cast(Any, command)
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def argument(name: str, *, help: str | None, is_required: bool) -> inspect.Parameter:
    """Return the parameter of a command's tasks, one or more, for ``first`` of :func:`add_flags`.

    Args:
        name: The parameter's name.
        help: Its text in ``--help``.
        is_required: Whether the command line must have one.
    """
    what = typer.Argument(metavar="PATH", help=help, show_default=False, autocompletion=completion.tasks)
    kind = Annotated[list[str], what]
    default = inspect.Parameter.empty if is_required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def given_values(flags: Sequence[Flag], context: typer.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the command line sets, nested like the model.

    Raises:
        UsageError: A flag's text can't be read.
    """
    found: dict[str, Any] = {}
    for flag in flags:
        source = context.get_parameter_source(flag.parameter)
        if source is None or source.name != "COMMANDLINE":
            continue
        place = found
        for step in flag.path[:-1]:
            place = place.setdefault(step, {})
        place[flag.path[-1]] = flag.read(values[flag.parameter])
    return found


def make_config[Config: BaseModel](model: type[Config], values: Mapping[str, Any], flags: Sequence[Flag]) -> Config:
    """Return a model with these values.

    Raises:
        UsageError: A value is invalid; the message is one line with the flags' names.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as exc:
        raise UsageError("; ".join(_problem(item, flags) for item in _causes(exc))) from exc


def _flags(model: type[BaseModel], path: tuple[str, ...], spelling: Spelling) -> list[Flag]:
    own: list[Flag] = []
    nested: list[Flag] = []
    for name, info in model.model_fields.items():
        here = (*path, name)
        dotted = ".".join(here)
        members, _ = _members(info.annotation)
        if models := [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]:
            found = {flag.path: flag for model in models for flag in _flags(model, here, spelling)}
            nested += found.values()
            continue
        flag = spelling.names.get(dotted, spelling.prefixes.get(".".join(path), "") + name.replace("_", "-"))
        if flag is not None:
            extra = cast("dict[str, Any]", info.json_schema_extra or {})
            group = spelling.groups.get(dotted) or extra.get("group") or spelling.groups.get(".".join(path))
            group = COMMON if dotted in spelling.common else group
            parser, default = spelling.parsers.get(dotted), spelling.defaults.get(dotted)
            also = tuple(spelling.also.get(dotted, ()))
            has_commas = dotted in spelling.with_commas
            own.append(
                Flag(here, flag, group, info, parser, default, has_commas, also, spelling.completions.get(dotted))
            )
    return own + nested


def _members(annotation: Any) -> tuple[list[Any], bool]:
    """Return the members of a union type without None, and whether None is one of them."""
    while hasattr(annotation, "__value__"):  # ``type X = …``
        annotation = annotation.__value__
    union = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [member for member in union if member is not type(None)], type(None) in union


def _or_none(member: type) -> Parser:
    def parse(text: str) -> Any:
        try:
            return None if text == _NONE else member(text)
        except ValueError:
            raise PydanticCustomError("number", "a number, or none, is wanted, got '{text}'", {"text": text}) from None

    parse.__name__ = member.__name__
    return parse


def _causes(error: ValidationError) -> list[dict[str, Any]]:
    """Return the errors, without those of defaults that could not be computed as a consequence."""
    found = cast("list[dict[str, Any]]", error.errors(include_url=False))
    return [item for item in found if item["type"] != "default_factory_not_called"] or found


def _problem(item: Mapping[str, Any], flags: Sequence[Flag]) -> str:
    place = tuple(map(str, item["loc"]))
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    flag = next((flag for flag in flags if place[: len(flag.path)] == flag.path), None)
    if flag is None:
        derived = place[-1:] in ((), ("task_dir",))  # from other flags; the message names the given value
        return message if derived else f"{'.'.join(place)}: {message}"
    return f"--{flag.name}: {message}, got {item['input']!r}"
