"""The pages of commands and settings, generated from the command line and the config."""

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from cyclopts import App, Parameter
from cyclopts.argument import Argument
from pydantic.fields import FieldInfo

from onsight.cli import make_app
from onsight.config import OVERRIDABLE_ON_RESUME, Config
from onsight_explain.cli import make_parser as explain_parser
from onsight_lint.cli import make_parser as lint_parser

EXAMPLES = {
    "train": "onsight train clothes --budget 5m",
    "sweep": "onsight sweep clothes --try learning_rate=0.001,0.003 --epochs 3",
    "check": "onsight check clothes --fail-on leakage,unusable",
    "eval": "onsight eval runs/clothes clothes",
    "shard": "onsight shard clothes --out shards",
    "predict": "onsight predict runs/clothes new --csv out.csv",
    "export": "onsight export runs/clothes --to web",
    "embed": "onsight embed runs/clothes clothes --out features.npz",
    "similar": "onsight similar runs/clothes new --among clothes",
    "serve": "onsight serve runs/clothes --port 8000",
    "models": "onsight models",
    "recipes": "onsight recipes",
    "report": "onsight report runs/clothes",
    "compare": "onsight compare runs/clothes runs/other",
    "card": "onsight card runs/clothes",
    "explain": "onsight explain runs/clothes --quick",
    "lint": "onsight lint train.py --diff",
    "verify-resume": "onsight verify-resume clothes",
    "doctor": "onsight doctor",
}
EXIT_CODES = """\
| code | meaning |
| --- | --- |
| 0 | success |
| 1 | the run failed; or `check --fail-on`, `doctor`, `lint` or `verify-resume` found something |
| 2 | a problem that you can fix; one message, no traceback |
| 129, 130, 143 | stopped by SIGHUP, Ctrl-C or SIGTERM; `train` writes a checkpoint first |
"""
_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


def commands_page() -> str:
    """Return the page of all commands with their options."""
    lines = ["# Commands", "", "Every command of `onsight` with its options. Results go to stdout,"]
    lines += ["everything else to stderr.", "", "## Exit codes", "", EXIT_CODES]
    for name in make_app():
        if not name.startswith("-"):
            lines += _parser_section(name) if name == "lint" else _app_section(name)
    lines += ["## onsight-explain", "", "`onsight explain SCRIPT.py` is the same command.", ""]
    return "\n".join([*lines, *_parser_lines(explain_parser())]) + "\n"


def settings_page() -> str:
    """Return the page of all settings, by group."""
    lines = ["# Settings", ""]
    lines += ["Each setting is an option of [`onsight train`](commands.md#train), `sweep`,"]
    lines += ["`explain` and `verify-resume`, a key of a run's `config.toml`, and a keyword of"]
    lines += ["`onsight.train`. Options take precedence over `--config`, which takes precedence"]
    lines += ["over `--recipe`.", ""]
    for group, fields in groups().items():
        lines += [f"## Group: {group}", ""]  # "Model" would take the anchor of `model`
        for name, field in fields.items():
            lines += [f"### {name}", "", " · ".join(_facts(name, field)), ""]
            lines += [escape(field.description or ""), ""]
    return "\n".join(lines)


def groups() -> dict[str, dict[str, FieldInfo]]:
    """Return the fields of the config by the title of their group."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for name, field in Config.model_fields.items():
        parameter = next(
            mark for mark in field.metadata if isinstance(mark, Parameter) and mark.group
        )
        (group,) = parameter.group  # type: ignore[misc] # a tuple, after conversion
        found.setdefault(str(getattr(group, "name", group)), {})[name] = field
    return found


def flags(command: str) -> set[str]:
    """Return every option of a command, or of `onsight-lint` or `onsight-explain`."""
    parsers = {"lint": lint_parser, "onsight-lint": lint_parser, "onsight-explain": explain_parser}
    if command in parsers:
        parser = parsers[command]()
        return {flag for action in parser._actions for flag in action.option_strings}
    arguments = _arguments(make_app(command)[command])
    names = {name for argument in arguments for name in argument.names}
    return {"--help", "-h", "--help-all", "--version", *(n for n in names if n.startswith("-"))}


def escape(text: str) -> str:
    """Return text with the characters of Markdown escaped, except in code, and options as code."""
    parts = re.split(r"(`[^`]*`|(?<![\w-])--[a-z][a-z0-9-]*)", text)
    parts[::2] = [re.sub(r"([\\*<[]|\b_|_\b)", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [code if code.startswith("`") else f"`{code}`" for code in parts[1::2]]
    return "".join(parts)


def _facts(name: str, field: FieldInfo) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    yield f"`{flag}`, `--no-{flag[2:]}`" if field.annotation is bool else f"`{flag}`"
    yield _kind(field.annotation)
    bounds = [_bound(mark) for mark in (*field.metadata, *_inner(field.annotation))]
    if limits := [bound for bound in bounds if bound]:
        yield " and ".join(limits)
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    yield f"default: `{default}`" if default != "" else "default: empty"
    if name in OVERRIDABLE_ON_RESUME:
        yield "may change when a run resumes"


def _kind(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if hint in _KINDS:
        return _KINDS[hint]
    return " or ".join(_kind(member) for member in get_args(hint))


def _inner(hint: Any) -> Iterator[Any]:
    """Yield the metadata inside a union, such as that of `int | Literal["auto"]`."""
    for member in get_args(hint):
        for extra in get_args(member)[1:] if get_origin(member) is Annotated else ():
            yield from getattr(extra, "metadata", [extra])


def _bound(mark: Any) -> str:
    attribute, words = _BOUNDS.get(type(mark), ("", ""))
    return f"{words} {getattr(mark, attribute):,}" if attribute else ""


def _app_section(name: str) -> list[str]:
    app = make_app(name, shows_all=True)[name]
    arguments = _arguments(app)
    settings = {f"--{field.replace('_', '-')}": field for field in Config.model_fields}
    settings = settings if len(arguments) > len(settings) else {}
    own = [argument for argument in arguments if argument.name not in settings]
    positional = [(_word(argument), argument.required) for argument in own if _word(argument)]
    words = [word if is_required else f"[{word}]" for word, is_required in positional]
    lines = [f"## {name}", "", escape(re.sub(r"\n+", "\n\n", str(app.help))), ""]
    lines += ["```text", " ".join(["onsight", name, *words, "[OPTIONS]"]), "```", ""]
    lines += [f"Example: `{EXAMPLES[name]}`", ""]
    for argument in own:
        lines += _option(_label(argument), _argument_facts(argument), argument.parameter.help or "")
    links = [f"[`{flag}`](settings.md#{field})" for flag, field in settings.items()]
    return (
        [*lines, "Every setting is an option too:", f"{', '.join(links)}.", ""] if links else lines
    )


def _arguments(app: App) -> list[Argument]:
    found = app.assemble_argument_collection(parse_docstring=True)
    return [
        argument for argument in found if not argument.name.startswith("*")
    ]  # not `*config` itself


def _word(argument: Argument) -> str:
    """Return the word for a positional argument, or ""."""
    return "" if argument.index is None else argument.name.lstrip("-").upper()


def _label(argument: Argument) -> str:
    names = [_word(argument)] if _word(argument) else argument.names
    return ", ".join(f"`{name}`" for name in names)


def _argument_facts(argument: Argument) -> Iterator[str]:
    if argument.required:
        yield "required"
    if not argument.is_flag() and (choices := argument.get_choices()):
        yield ", ".join(f"`{choice}`" for choice in choices)
    default = argument.field_info.default
    if isinstance(default, int | float | str) and not isinstance(default, bool) and default != "":
        yield f"default: `{default}`"


def _option(label: str, facts: Iterable[str], text: str) -> list[str]:
    """Return an item of a list."""
    return [f"- {' · '.join([label, *facts])}: {escape(' '.join(text.split()))}", ""]


def _parser_section(name: str) -> list[str]:
    head = [f"## {name}", "", f"`onsight-{name}` is the same command.", ""]
    return [*head, f"Example: `{EXAMPLES[name]}`", "", *_parser_lines(lint_parser())]


def _parser_lines(parser: argparse.ArgumentParser) -> list[str]:
    """Describe a command line that argparse reads."""
    description, epilogue = parser.description or "", parser.epilog or ""
    lines = [escape(description), ""]
    for action in parser._actions:
        names = action.option_strings or [str(action.metavar)]
        help_text = (action.help or "") % {"default": action.default, "prog": parser.prog}
        facts = [", ".join(f"`{choice}`" for choice in action.choices or ())]
        label = ", ".join(f"`{name}`" for name in names)
        lines += _option(label, filter(None, facts), help_text)
    return [*lines, "```text", epilogue.strip(), "```", ""] if epilogue else lines
