"""A pseudo-terminal for a command, and its screen."""

import codecs
import copy
import itertools
import os
import pty
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.commands import environment

COLUMNS = 164  # a line of metrics isn't wrapped
TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([^\x1b])", re.DOTALL)
UNFINISHED = re.compile(r"\x1b(\[[?\d;]*)?$")
BAR = re.compile(r"━ +(\d+)/(\d+) ")  # the progress bar's count of steps
PART = 2 / 3


class Screen:
    """An endless screen for the output of `rich` at this width: it moves, styles and erases lines.

    >>> screen = Screen(20)
    >>> screen.feed("1/2\\r\\x1b[2Kloss \\x1b[1m0.5\\x1b[0m\\r\\n2/2")
    >>> screen.text
    'loss 0.5\\n2/2'
    """

    def __init__(self, columns: int):
        self._columns = columns
        self._lines: list[list[tuple[str, str]]] = [[]]  # per cell its style, as sequences, and its character
        self._row = self._column = 0
        self._style = self._rest = ""

    def feed(self, text: str) -> None:
        """Interprets `text`; keeps an incomplete sequence for the next call."""
        text = self._rest + text
        unfinished = UNFINISHED.search(text)
        self._rest = unfinished[0] if unfinished else ""
        for numbers, sequence, character in TOKEN.findall(text.removesuffix(self._rest)):
            if character:
                self._write(character)
            elif sequence == "m":
                self._style = "" if numbers in ("", "0") else f"{self._style}\x1b[{numbers}m"
            elif sequence == "A":
                self._row = max(self._row - int(numbers or 1), 0)
            elif (numbers, sequence) == ("2", "K"):
                self._lines[self._row].clear()
            elif numbers != "?25":  # hide and show the cursor
                raise ValueError(f"this terminal doesn't know `ESC[{numbers}{sequence}`: add it to `Screen`")

    def _write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
        else:
            if self._column == self._columns:
                self._row, self._column = self._row + 1, 0
            self._grow()
            line = self._lines[self._row]
            line += [("", " ")] * (self._column + 1 - len(line))
            line[self._column] = self._style, character
            self._column += 1
        self._grow()

    def _grow(self) -> None:
        self._lines += [[] for _ in range(self._row + 1 - len(self._lines))]

    @property
    def text(self) -> str:
        """Returns the readable text."""
        return "\n".join("".join(character for _, character in line) for line in self._lines)

    @property
    def ansi(self) -> str:
        """Returns the text with its styles."""
        return "\n".join(map(_ansi, self._lines))


def _ansi(line: Sequence[tuple[str, str]]) -> str:
    runs = itertools.groupby(line, key=lambda each: each[0])
    return "".join(f"{style}{''.join(character for _, character in run)}\x1b[0m" for style, run in runs)


def shown(command: Sequence[str], prompt: str, folder: Path) -> Screen:
    """Runs a command on a terminal; returns the screen at two thirds of its bar, or else at the end."""
    screen, seen = Screen(COLUMNS), None
    screen.feed("".join(f"\x1b[32m{'>' if i else '$'}\x1b[0m {line}\r\n" for i, line in enumerate(prompt.splitlines())))
    mine, theirs = pty.openpty()
    variables = {**environment(), "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        decode = codecs.getincrementaldecoder("utf-8")().decode
        while part := _read(mine):
            for piece in re.split("(?=\r)", decode(part)):  # each bar begins so, and erases the previous one
                screen.feed(piece)
                bar = BAR.search(screen.text)
                if seen is None and bar and int(bar[1]) >= PART * int(bar[2]):
                    seen = copy.deepcopy(screen)
    os.close(mine)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} of\n{screen.text}")
    return seen or screen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports that the other end is closed
        return b""
