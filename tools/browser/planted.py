"""Pages with one fault each, which the checks must find."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tools.browser.look import views
from tools.browser.progress import progress

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>a page</title><style>
:root {{ color-scheme: light dark }} body {{ margin: 0; background: Canvas; color: CanvasText }}
</style></head><body><p>All is well.</p>{fault}</body></html>"""
FAULTS = {  # the page's body, and what the checks report
    '<p style="width: 2000px">wide</p>': "pixels wide, where there are",
    '<p style="color: #808080; background: #909090">faint</p>': '"faint" at a contrast of',
    '<p style="opacity: 0.2">pale</p>': '"pale" at a contrast of',
    '<p style="font-size: 7px">small</p>': '"small" in letters of 7px',
    '<svg viewBox="0 0 100 50"><text x="90" y="20" fill="#777">beyond</text></svg>': 'cuts "beyond" off',
    '<svg viewBox="0 0 900 50"><g fill="#777"><text y="30">over</text><text x="9" y="30">under</text></g></svg>': (
        'has "over" on "under"'
    ),
    '<svg viewBox="0 0 9 9"><polyline points="0,0 9,9" fill="none" stroke="#80808030"/></svg>': "has a line at",
    '<p style="width: 40px; overflow: hidden; white-space: nowrap">hidden words</p>': "cuts off what",
    '<img alt="gone" src="data:image/png;base64,AAAA">': "isn't there: gone",
    '<img alt="" src="http://127.0.0.1:9/x.png">': "asks for http://127.0.0.1:9/x.png",
    "<script>throw new Error('broken')</script>": "has a script that fails: broken",
    "<style>:root { color-scheme: light } body { background: #fff; color: #000 }</style>": "where the reader's system",
}


def unseen(chromium: "Browser", folder: Path) -> Iterator[str]:
    """Yields a sentence for each planted fault that the checks miss, and for each false report."""
    path = folder / "planted.html"
    for fault, said in {**FAULTS, "": None}.items():
        progress(f"opens a page with {fault[:60] or 'no fault'}")
        path.write_text(PAGE.format(fault=fault))
        found = [text for _, _, faults in views(chromium, path.as_uri()) for text in faults]
        if said is None and found:
            yield f"a page without a fault is said to have one: it {found[0]}"
        if said is not None and not any(said in text for text in found):
            yield f"nothing is said of {fault}"
