"""Draws a terminal as self-contained SVG: any font works, and nothing is fetched."""

import io
import re

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

# Legible on this background, dim or not.
GROUND, TEXT = (24, 26, 31), (226, 229, 234)
COLOURS = [
    (110, 116, 128),  # black
    (255, 123, 114),  # red
    (126, 211, 134),  # green
    (240, 198, 116),  # yellow
    (121, 184, 255),  # blue
    (214, 160, 255),  # magenta
    (86, 212, 221),  # cyan
    (226, 229, 234),  # white
]
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{terminal_width}">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, "DejaVu Sans Mono", Consolas, monospace }}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def svg(ansi: str, name: str) -> str:
    """Returns a window with this styled text, as wide as needed."""
    text = Text.from_ansi(ansi.rstrip("\n"))
    width = max(len(line.rstrip()) for line in text.plain.splitlines())
    console = Console(file=io.StringIO(), record=True, width=width, highlight=False)
    console.print(text, soft_wrap=True)
    theme = TerminalTheme(GROUND, TEXT, COLOURS, COLOURS)
    drawn = console.export_svg(title="", theme=theme, code_format=FORMAT, unique_id=name)
    drawn = re.sub(r"<text [^>]*>\n</text>", "", drawn)  # the ends of lines
    # A text is as long as its letters on the grid, whichever font they are in.
    return drawn.replace(" textLength=", ' lengthAdjust="spacingAndGlyphs" textLength=')
