"""The class of a verb (sub-command), and the arguments that several verbs share."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from headcount.cli._output import Output, print_error
from headcount.config import NameIn
from headcount.errors import InputError
from headcount.limits import TIMEOUT, parse_seconds
from headcount.suggestions import suggestion


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in headcount's form: what was wrong, then what to do."""

    def error(self, message: str) -> NoReturn:
        """Print the error and where to find help, and exit with code 2."""
        self.exit(2, f"error: {message}\n  see: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error for a value that is not among the choices; suggest a similar one (argparse would list all)."""
        if action.choices is not None and value not in action.choices:
            what = f"value {value!r} for {action.option_strings[-1]}" if action.option_strings else f"{value!r}"
            named = "" if action.option_strings else f"{str(action.metavar or action.dest).lower()} "
            self.error(f"no {named}{what}\n  {suggestion(value, action.choices)}")


@dataclass(frozen=True)
class Command:
    """One verb (sub-command) of the command line: its help, its flags, and the function that runs it."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Output]
    examples: tuple[str, ...] = ()
    """Example commands, printed at the end of the verb's help."""


MODEL = (
    "a run folder, RUN@500 (its snapshot of step 500), sample:addition, sample:sortedness, a Hugging Face folder, "
    "or my_adapter.py:Class"
)
ADVANCED = "advanced options"


def advanced(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Return the parser's group of flags that few people need; the help lists this group last."""
    groups = [group for group in parser._action_groups if group.title == ADVANCED]
    return groups[0] if groups else parser.add_argument_group(ADVANCED)


def add_models_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names one or more models."""
    several = f"{MODEL}; 'submissions/*/my_adapter.py:Class' names all models of a course"
    parser.add_argument("models", metavar="MODEL", nargs="+", help=several)
    _add_run_adapter(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the time limit per model, for verbs that measure several models in separate processes."""
    text = "time limit for each of several models, such as 90s or 5m; a model that takes longer is reported as failed "
    text += f"[{TIMEOUT / 60:g}m]"
    advanced(parser).add_argument("--timeout", type=_time_limit, metavar="SECONDS", default=TIMEOUT, help=text)


def _time_limit(text: str) -> float:
    return parse_seconds(text, "--timeout")


def all_models(names: Sequence[str]) -> list[str]:
    """Return the names of all models without repeats, after expanding patterns such as `submissions/*/a.py:Model`."""
    models = list[str]()
    for name in names:
        pattern, colon, class_name = name.rpartition(":")
        if not (colon and pattern.endswith(".py") and any(letter in pattern for letter in "*?[")):
            models.append(name)
            continue
        files = sorted(glob(pattern))  # noqa: PTH207  # Path.glob refuses absolute paths
        if not files and not Path(pattern).exists():
            raise InputError(
                f"no file matches {pattern}", "write a pattern such as 'submissions/*/adapter.py:Model', in quotes"
            )
        if folders := _folders_without(pattern, files):
            print_error(f"no {Path(pattern).name} in {', '.join(folders)}: left out")
        models += [f"{file}:{class_name}" for file in files or [pattern]]
    return list(dict.fromkeys(models))


def _folders_without(pattern: str, files: Sequence[str]) -> list[str]:
    """Return the folders that match a pattern but contain no matching file, which are missing submissions."""
    parent, complete = Path(pattern).parent, {str(Path(file).parent) for file in files}
    folders = sorted(glob(str(parent))) if any(letter in str(parent) for letter in "*?[") else []  # noqa: PTH207
    return [
        folder
        for folder in folders
        if Path(folder).is_dir() and folder not in complete and not Path(folder).name.startswith("_")
    ]


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL, which names one model: a run, a sample, a folder or an adapter."""
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    _add_run_adapter(parser)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the file on which models without a task are measured."""
    tables = "a table (.tsv, .csv, .jsonl) with the columns text, label; first, second, score; or source, target"
    folders = (
        "a folder with one subfolder of images per class, or a folder written by save_to_disk of the datasets library"
    )
    file = f"data for a model without a task: plain text, {tables}, {folders}"
    parser.add_argument("--data", metavar="FILE", help=file)
    lines = "with --data: treat every line of a text file as one example"
    parser.add_argument("--lines", action="store_true", help=lines)


def _add_run_adapter(parser: argparse.ArgumentParser) -> None:
    adapter = "if MODEL was pruned from an adapter's model: run the adapter's Python file that the folder names"
    advanced(parser).add_argument("--run-adapter", action="store_true", help=adapter)


def add_int(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, flag: str, text: str, default: int | None = None
) -> None:
    """Add a flag for an integer; `text` is its help, which ends with the default."""
    shown = text if default is None else f"{text} [{default}]"
    parser.add_argument(flag, type=int, metavar="INT", default=default, help=shown)


def add_out(parser: argparse.ArgumentParser, text: str, default: str | None = None) -> None:
    """Add the flag `-o` for the folder to write to; `text` is its help."""
    parser.add_argument("-o", "--out", type=_folder_name, metavar="DIR", default=default, help=text)


def add_json(parser: argparse.ArgumentParser, *, quiet: bool = False) -> None:
    """Add the flag `--json` and, with `quiet`, the flag `--quiet` for verbs that take long."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    if quiet:
        advanced(parser).add_argument("--quiet", action="store_true", help="show no progress")


def comma_list(text: str) -> list[str]:
    """Return the names in a list that is separated by commas, without spaces."""
    return [name.strip() for name in text.split(",")]


def lengths(text: str) -> list[int]:
    """Return the numbers in a text such as `16,64,256`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is not a list of lengths", "write it as 16,64,256") from None


def _folder_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty: give a folder")
    return text


def keywords(args: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the parsed flags as keyword arguments of an API function, without the flags named in `others`."""
    return {name: value for name, value in vars(args).items() if name not in ("verb", "run", "parser", "json", *others)}


# --- flags ------------------------------------------------------------------------------------------------------------
# Flags made from settings: the field `n_heads` becomes the flag `--n-heads`, and its docstring the help.
#
# Values stay text until the whole configuration is checked, so that one error lists every fault.


SHORT = 32
"""The choices of a flag are listed beside the flag if they have at most this many characters, else in its help text."""


def add_settings(
    parser: argparse.ArgumentParser, sections: dict[str, type], defaults: Mapping[str, Mapping[str, Any]]
) -> None:
    """Add one flag per setting of these classes, grouped by section; `defaults` replace the defaults of the classes."""
    for section, cls in sections.items():
        group = parser.add_argument_group("data" if section == "task" else section)
        for name, field in _fields(cls).items():
            # pydantic has the docstring of a setting only in the class that defines it.
            definitions = [vars(base).get("__pydantic_fields__", {}).get(name) for base in cls.__mro__]
            text = next((part.description for part in definitions if part and part.description), "")
            _add_flag(group, name, field, text, defaults.get(section, {}).get(name, field.default))


def given_settings(args: argparse.Namespace, sections: dict[str, type]) -> dict[str, Any]:
    """Return the settings that the command line gives, by section; `none` means None where a setting allows it."""
    given = {}
    for cls in sections.values():
        for name, field in _fields(cls).items():
            if hasattr(args, name):
                value = getattr(args, name)
                given[name] = None if value == "none" and type(None) in get_args(field.annotation) else value
    return given


def _fields(cls: type) -> dict[str, FieldInfo]:
    return cls.__pydantic_fields__  # type: ignore[attr-defined]


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo, text: str, default: Any) -> None:
    # argparse treats every flag that begins with --no- as the negation of another flag.
    assert not name.startswith("no_"), f"name the setting for what it switches on: argparse cannot set --{name}"
    flag, text = f"--{name.replace('_', '-')}", " ".join(text.split())
    if field.annotation is bool:
        # On and off, so that the user can switch off what a preset switches on.
        action, shown = argparse.BooleanOptionalAction, f"{text} [{'on' if default else 'off'}]".replace("%", "%%")
        group.add_argument(flag, dest=name, action=action, default=argparse.SUPPRESS, help=shown)
        return
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    choices += [name for mark in field.metadata if isinstance(mark, NameIn) for name in mark.registry.names()]
    few = f"{{{','.join(choices)}}}" if choices and sum(map(len, choices)) <= SHORT else None
    hint = f" One of: {', '.join(choices)}." if choices and not few else ""
    shown = f"{text}{hint}{'' if default in (None, ()) else f' [{default}]'}".replace("%", "%%")
    metavar = few or ("NAME" if choices else _metavar(field.annotation))
    group.add_argument(flag, dest=name, default=argparse.SUPPRESS, metavar=metavar, help=shown)


def _metavar(annotation: Any) -> str:
    """Return the type of a flag's value as help shows it: `INT`, `FLOAT|none`, `NAME,...`, `INT,...`."""
    if get_origin(annotation) is tuple:
        part = _metavar(get_args(annotation)[0])
        return f"{'NAME' if part == 'TEXT' else part},..."
    if get_origin(annotation) is Annotated:
        return _metavar(get_args(annotation)[0])
    if args := get_args(annotation):
        return "|".join("none" if part is type(None) else _metavar(part) for part in args)
    return {int: "INT", float: "FLOAT"}.get(annotation, "TEXT")
