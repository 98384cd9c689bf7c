"""Parses gin files and `--gin_param`s to statements with file and line, without importing TensorFlow or user code.

>>> print(read_all([], ["adamw.learning_rate = 0.1"], []).bindings[0])
`adamw.learning_rate = 0.1` (--gin_param)
"""

import dataclasses
import difflib
import os
import re
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gin import config_parser

from core.errors import ConfigurationError, did_you_mean, shown
from trainers.gin_audit.statements import Binding, Import, Macro, Place, Reference
from trainers.gin_audit.text_files import MOST_DEEP, one_line, read_text, reason


@dataclasses.dataclass
class Statements:
    """The bindings and imports of all files and `--gin_param`s, in the order in which they were read."""

    bindings: list[Binding] = dataclasses.field(default_factory=list)
    imports: list[Import] = dataclasses.field(default_factory=list)


def read_all(files: Sequence[str], params: Sequence[str], search: Sequence[Path]) -> Statements:
    """Returns the statements of the gin files `files`, of the files that they include, and of `params`."""
    reader = _Reader(search)
    for name in files:
        reader.read_file(name)
    for param in params:
        reader.parse(_as_utf8(param), "--gin_param", ())
    return reader.statements


def _as_utf8(param: str) -> str:
    """Returns a command-line argument decoded as UTF-8, whatever the locale."""
    try:
        return os.fsencode(param).decode()
    except UnicodeError:
        raise ConfigurationError(
            f"`--gin_param` is {shown(param)}, which isn't UTF-8, so gin can't read it. Use a file name in UTF-8, "
            "for example a link."
        ) from None


class _Reader(config_parser.ParserDelegate):
    """Follows includes and collects statements."""

    def __init__(self, search: Sequence[Path]):
        self.search = [Path(directory) for directory in search]
        self.statements = Statements()
        self.readings = 0

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        """Returns a `@name` that gin's parser found."""
        scope, _, selector = scoped_configurable_name.rpartition("/")
        return Reference(scope, selector, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)

    def read_file(self, name: str, place: Place | None = None, inside: tuple[Path, ...] = ()) -> None:
        """Reads the gin file `name`. An included file is also searched in the folder of the including file."""
        bases = [Path(), *(path.parent for path in inside[-1:]), *self.search]
        found = [base / name for base in bases if (base / name).exists()]
        path = next((path for path in found if path.is_file()), found[0] if found else None)
        if path is None:
            raise _no_such_file(name, place, bases)
        if path.resolve() in [other.resolve() for other in inside]:
            raise ConfigurationError(
                f"`include {name!r}` ({place}) includes a file that is still being read; remove it."
            )
        if len(inside) >= MOST_DEEP:
            raise ConfigurationError(
                f"`include {name!r}` ({place}): includes are more than {MOST_DEEP} levels deep; use fewer."
            )
        try:
            content = read_text(path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The gin file `{path}` can't be read: {reason(error)}. It must be a readable UTF-8 text file."
            ) from error
        self.parse(content, os.path.normpath(path), (*inside, path))

    def parse(self, content: str, source: str, inside: tuple[Path, ...]) -> None:
        """Reads the statements of one file or one `--gin_param`."""
        self.readings += 1
        reading = self.readings

        def place_of(line: int) -> Place:
            return Place(source, line if inside else 0)

        try:
            parser = _Parser(content, self)
            # `for statement in parser` would take a `StopIteration` of the tokeniser for the end of the file.
            while (statement := parser.parse_statement()) is not None:
                place = place_of(statement.location.line_num)
                if isinstance(statement, config_parser.BindingStatement):
                    key = (statement.scope, statement.selector, statement.arg_name)
                    self.statements.bindings.append(Binding(*key, statement.value, place, reading))
                elif isinstance(statement, config_parser.ImportStatement):
                    self.statements.imports.append(Import(statement.module, statement, place))
                elif isinstance(statement, config_parser.IncludeStatement):
                    self.read_file(statement.filename, place, inside)
        except (SyntaxError, tokenize.TokenError, StopIteration) as error:
            raise _syntax_error(error, content, place_of) from error


class _Parser(config_parser.ConfigParser):
    """gin's parser with more errors: a minus before a name, duplicate or unhashable keys, deep nesting."""

    depth = 0

    def __init__(self, content: str, delegate: config_parser.ParserDelegate):
        self.keys: list[set[Any]] = []  # of the open brackets
        super().__init__(content, delegate)

    def _maybe_parse_container(self) -> tuple[bool, Any]:
        self.keys.append(set())
        found = super()._maybe_parse_container()
        self.keys.pop()
        return found

    def _parse_dict_item(self) -> tuple[Any, Any]:
        place = self._current_location()
        key, value = super()._parse_dict_item()
        try:
            twice = key in self.keys[-1]
        except TypeError:
            raise SyntaxError(f"{key!r} can't be a dictionary key: it contains a list or a dictionary", place) from None
        if twice:
            raise SyntaxError(f"{key!r} is twice in one dictionary, which keeps only the last; rename one", place)
        self.keys[-1].add(key)
        return key, value

    def parse_value(self) -> Any:
        """Returns the next value, also within a list, tuple or dict."""
        minus, place = self.current_token.string == "-", self._current_location()
        if self.depth > MOST_DEEP:
            raise SyntaxError(f"more than {MOST_DEEP} nested brackets", place)
        self.depth += 1
        value = super().parse_value()
        self.depth -= 1
        if minus and isinstance(value, Reference | Macro):
            where = f"in the definition of `{value}`" if isinstance(value, Macro) else f"in what `{value}` makes"
            raise SyntaxError(f"`-{value}`: gin has no minus for a name; write the sign {where}", place)
        return value


def _syntax_error(error: Exception, content: str, place_of: Callable[[int], Place]) -> ConfigurationError:
    lines = content.splitlines() or [""]
    why, line = str(error.args[0]) if error.args else "unexpected end", len(lines)
    if isinstance(error, SyntaxError):
        why, line = error.msg, min(error.lineno or line, line)
    elif isinstance(error, tokenize.TokenError):
        line = min(error.args[1][0], line)
        if "EOF" in why or "unterminated" in why:
            why = "a bracket or quote is still open where the text ends"
    if word := re.search(r"Failed to parse token '(.+)'$", why, re.DOTALL):
        token = one_line(word[1])
        near = {"true": "True", "false": "False", "none": "None", "null": "None"}.get(token.lower())
        why = f"`{token}` is not a value"
        why += (
            f". Did you mean `{near}`?"
            if near
            else f'; put quotes around a string ("{token}"), `%` before a macro and `@` before a configurable'
        )
    elif why == "Expected newline.":
        why = "expected one value and nothing after it (gin has literals, `@name`, `%name`, but no arithmetic)"
    why = " ".join(why.split()).rstrip(".")
    end = "" if why.endswith("?") else "."
    return ConfigurationError(
        f"{place_of(line)} can't be read as gin: {why}{end} The line is `{one_line(lines[line - 1])}`."
    )


def _no_such_file(name: str, place: Place | None, bases: Sequence[Path]) -> ConfigurationError:
    looked = dict.fromkeys(str((base / name).resolve()) for base in bases)
    existing = {
        os.path.relpath(path)
        for base in bases
        for path in (*(base / name).parent.glob("*.gin"), *(base / "configs").glob("**/*.gin"))
    }
    near = did_you_mean(name, existing)
    if not near:  # the right name in another folder, or without suffix
        by_stem = {Path(path).stem: path for path in existing}
        close = difflib.get_close_matches(Path(name).stem, by_stem, n=1)
        near = f" Did you mean `{by_stem[close[0]]}`?" if close else " Check its name and the working directory."
    by = f"`include {name!r}` ({place})" if place else f"`--gin_file={name}`"
    return ConfigurationError(f"{by}: there is no such gin file; looked for {', '.join(looked)}.{near}")
