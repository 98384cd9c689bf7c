"""Parses flags with absl. A mistake is an error of one paragraph, and help exits with 0.

A command defines its flags on the `FlagValues` that it is given, never on `absl.flags.FLAGS`. So one process can parse
repeatedly, with the flags of several commands:

>>> from absl import flags
>>> def define(flag_values):
...     flags.DEFINE_integer("workers", 1, "how many processes", flag_values=flag_values)
>>> parse_flags(["--workers=3"], define, usage="python -m mine [--workers=N]").workers
3
"""

import collections
import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags, logging
from absl.flags import Flag, FlagValues

from core.errors import ConfigurationError, did_you_mean
from trainers.gin_audit.text_files import MOST_DEEP, read_text, reason

COMMON = "every command"  # the heading of absl's help that flags of every command stand under
FlagTable = Mapping[str, tuple[Callable[..., Any], Any, str]]  # by name: absl's `DEFINE_...`, the default, the help


def define_table(flag_values: FlagValues, table: FlagTable) -> None:
    """Defines the flags of a table that aren't defined yet."""
    for name, (define, default, text) in table.items():
        if name not in flag_values:
            define(name, default, text, flag_values=flag_values)


def parse_flags(
    words: Sequence[str],
    define: Callable[[FlagValues], None],
    *,
    usage: str,
    hint: str = "",
    bare: str = "",
    define_more: Callable[[FlagValues], None] = lambda flag_values: None,
) -> FlagValues:
    """Parses a command line to flags. Raises a `ConfigurationError` for a mistake.

    `usage` heads the help, and `hint` is appended to the error for an unknown flag. A word without `--` is a value of
    the flag `bare`. `define_more` defines flags that are seldom needed: it is called for the help, and for a name that
    isn't defined yet.
    """
    flag_values = FlagValues()
    define(flag_values)
    _define_common_flags(flag_values, usage, define_more)
    flag_values.mark_as_parsed()
    _Reader(flag_values, hint, bare, define_more).read(words)
    return flag_values


def refuse_address(flags: FlagValues, name: str) -> None:
    """Raises a `ConfigurationError` if the flag `name` gives a network address, as `gs://...`, and no local folder."""
    folder = str(flags[name].value or "")
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", folder):
        raise ConfigurationError(
            f"`--{name}` is {folder!r}: files are written to a local folder, and not to "
            f"`{scheme[0]}`. Mount it as a folder, or give another and copy the files afterwards."
        )


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Passes flags to absl one at a time, so that errors name the flag and its file."""

    flag_values: FlagValues
    hint: str
    bare: str
    define_more: Callable[[FlagValues], None]

    def read(self, words: Sequence[str], files: tuple[Path, ...] = ()) -> None:
        """Reads `words`: a command line, or the lines of a flag file. `files` are open flag files, innermost last."""
        rest, given = collections.deque(words), set()
        while rest:
            word = rest.popleft()
            if self.bare and not word.startswith("-"):
                word = f"--{self.bare}={word}"
            flag = self._find(word)
            if flag.name in given and not isinstance(flag, flags.MultiFlag):
                raise ConfigurationError(f"`--{flag.name}` is given twice, the second time as `{word}`: keep one.")
            given.add(flag.name)
            if "=" not in word and not flag.boolean:
                if not rest or rest[0].startswith("--"):
                    raise ConfigurationError(f"`{word}` has no value: write `{word}=VALUE`.")
                word = f"{word}={rest.popleft()}"
            value = word.partition("=")[2]
            if "=" in word and not value.strip(" "):
                raise ConfigurationError(f"`{word}` has an empty value: give one, or remove the flag.")
            if flag.name == "flagfile":
                self._read_file(Path(value).expanduser(), files)
            else:
                self._parse(flag, word, value)

    def _find(self, word: str) -> Flag[Any]:
        """Returns the flag that `word` names."""
        name = word.removeprefix("-").removeprefix("-").partition("=")[0]
        if name not in self.flag_values:
            self.define_more(self.flag_values)
        if not word.startswith("-") or not name:
            known = f" Did you mean `--{word}`?" if name in self.flag_values else ""
            raise ConfigurationError(f"`{word}` belongs to no flag: write a value as `--flag=value`.{known}")
        if name in self.flag_values:
            return self.flag_values[name]
        positive = name.removeprefix("no")
        if positive in self.flag_values and self.flag_values[positive].boolean:
            return self.flag_values[positive]
        if " " in name:
            raise ConfigurationError(f"`{word}` has a space in the flag's name: put a `=` before the value.")
        longer = [each for each in self.flag_values if each.startswith(name)]
        near = f" Did you mean `{longer[0]}`?" if len(longer) == 1 else did_you_mean(name, self.flag_values)
        raise ConfigurationError(f"there is no flag `{word}`.{near.replace('`', '`--', 1)}{self.hint}")

    def _parse(self, flag: Flag[Any], word: str, value: str) -> None:
        try:
            self.flag_values(["", word])
        except (flags.Error, ValueError):
            if flag.boolean:
                takes = f"it is a switch: write `--{flag.name}` or `--no{flag.name}`"
            else:
                takes = f"it takes {flag.parser.syntactic_help}"
            raise ConfigurationError(f"`{word.partition('=')[0]}` is {value!r}; {takes}.") from None

    def _read_file(self, path: Path, files: tuple[Path, ...]) -> None:
        """Reads flags from a file as absl does: one per line, without shell quotes. `#` begins a comment."""
        if path.resolve() in files:
            raise ConfigurationError(f"`--flagfile={path}` includes itself: remove it from the file.")
        if len(files) >= MOST_DEEP:
            raise ConfigurationError(f"`--flagfile={path}`: more than {MOST_DEEP} files include each other; join them.")
        try:
            lines = [line.strip() for line in read_text(path).splitlines()]
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"`--flagfile={path}` can't be read ({reason(error)}); it is searched in `{Path.cwd()}`."
            ) from None
        try:
            self.read([line for line in lines if line and not line.startswith(("#", "//"))], (*files, path.resolve()))
        except ConfigurationError as error:
            raise ConfigurationError(f"in `{path}`: {error}") from None


def _define_common_flags(flag_values: FlagValues, usage: str, define_more: Callable[[FlagValues], None]) -> None:
    def show(module: str) -> str:
        return flag_values.module_help(module).strip().partition("\n")[2]  # without absl's heading, the module's name

    def show_own() -> str:
        define_more(flag_values)
        own = [module for module in flag_values.flags_by_module_dict() if module != COMMON]
        return "\n".join([usage, "\nflags:", *map(show, own)])

    def show_short() -> str:
        return f"{show_own()}\n\nTry --helpfull for the flags that every command has (--flagfile, --verbosity)."

    def show_all() -> str:
        return f"{show_own()}\n\nflags of every command:\n{show(COMMON)}"

    flags.DEFINE_flag(_HelpFlag("help", "show the help", show_short, short_name="h"), flag_values, COMMON)
    flags.DEFINE_flag(_HelpFlag("helpfull", "show the help with all flags", show_all), flag_values, COMMON)
    flags.DEFINE_string(
        "flagfile",
        None,
        "a file of flags, one per line; later flags override it",
        flag_values=flag_values,
        module_name=COMMON,
    )
    flags.DEFINE_integer(
        "verbosity",
        logging.INFO,
        "level of messages on stderr: 1 debug, 0 info, -1 warnings, -2 errors",
        short_name="v",
        flag_values=flag_values,
        module_name=COMMON,
    )


class _HelpFlag(flags.BooleanFlag):
    """Prints the help as soon as the flag is read, and exits with 0."""

    def __init__(self, name: str, text: str, show: Callable[[], str], *, short_name: str | None = None):
        super().__init__(name, False, text, short_name=short_name)
        self._show = show

    def parse(self, argument: str | bool) -> None:
        super().parse(argument)
        if self.value:
            print(self._show())
            sys.exit(0)
