"""Draws layers of boxes from a text, as SVG that follows a light or dark page.

    A step
    batch: rows by their number
    replica 0: gradients | replica 1: gradients
    all-reduce: one sum

The first line is the title. Each other line is a layer, drawn below the one before; `|` separates its boxes, and a text
behind `: ` is set smaller. An arrow joins each box with the next layer's boxes; a line that begins with `=` has none.
"""

from xml.sax.saxutils import escape

WIDTH, MARGIN, GAP, BOX, BETWEEN = 760, 12, 16, 50, 26
LETTER = 6.4  # pixels of the wider text, by the largest of usual fonts
STYLE = """
text { font-family: sans-serif; fill: #1c1e26 } .title { font-weight: bold; font-size: 15px }
.name { font-weight: bold; font-size: 13px } .more { font-size: 11px; fill: #565c6b }
rect { fill: #eef1fb; stroke: #5c6bc0 } path { stroke: #5c6bc0; fill: none } marker path { fill: #5c6bc0 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8f0 } .more { fill: #aab0c2 } rect { fill: #262a3b; stroke: #9fa8da }
path { stroke: #9fa8da } marker path { fill: #9fa8da } }
"""
HEAD = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'


def diagram(source: str) -> str:
    """Returns the picture of a text."""
    title, *lines = [line.strip() for line in source.strip().splitlines()]
    drawn = [f'<text class="title" x="{MARGIN}" y="24">{escape(title)}</text>']
    top, above = 40.0, list[float]()
    for line in lines:
        joined = not line.startswith("=")
        boxes = [part.strip().partition(": ") for part in line.removeprefix("=").split("|")]
        width = (WIDTH - 2 * MARGIN - GAP * (len(boxes) - 1)) / len(boxes)
        top += BETWEEN if above and joined else GAP / 2 if above else 0
        middles = [MARGIN + i * (width + GAP) + width / 2 for i in range(len(boxes))]
        for middle, (name, _, more) in zip(middles, boxes, strict=True):
            drawn += _box(middle, top, width, name, more)
        if joined:
            drawn += [_arrow(x, y, top) for x, y in _pairs(above, middles)]
        top, above = top + BOX, middles
    size = f'width="{WIDTH}" height="{top + MARGIN:g}" viewBox="0 0 {WIDTH} {top + MARGIN:g}"'
    head = f'{HEAD}<path d="M0 0L8 4L0 8z"/></marker>'
    body = "\n".join(drawn)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n{head}\n{body}\n</svg>\n'


def _box(middle: float, top: float, width: float, name: str, more: str) -> list[str]:
    if LETTER * max(len(name) * 1.15, len(more)) > width:
        raise ValueError(f"`{name}: {more}` is wider than its box of {width:.0f} pixels: shorten it.")
    lines = [("name", name, 30 if not more else 21)] + [("more", more, 38)] * bool(more)
    rect = f'<rect x="{middle - width / 2:g}" y="{top:g}" width="{width:g}" height="{BOX}" rx="6"/>'
    return [rect] + [
        f'<text class="{kind}" x="{middle:g}" y="{top + down:g}" text-anchor="middle">{escape(text)}</text>'
        for kind, text, down in lines
    ]


def _pairs(above: list[float], below: list[float]) -> list[tuple[float, float]]:
    """Joins one box with all, and equal numbers of boxes one to one."""
    if len(above) == len(below):
        return list(zip(above, below, strict=True))
    return [(x, y) for x in above for y in below]


def _arrow(start: float, end: float, top: float) -> str:
    return f'<path d="M{start:g} {top - BETWEEN + 1:g}L{end:g} {top - 2:g}" marker-end="url(#head)"/>'
