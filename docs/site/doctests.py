"""Shows the examples in docstrings as code: of `>>>` Markdown would make three quotations, one in the other."""

import doctest
import textwrap

from griffe import Extension, Object


class Doctests(Extension):
    """Puts a fence around each example, and takes away what indents it."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rewrites an object's docstring once it is read."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Returns a docstring in which each example, with what it prints, stands between fences.

    >>> fenced("Adds.\\n\\n    >>> 1 + 1\\n    2\\n\\nThat is all.").splitlines()
    ['Adds.', '', '```python', '>>> 1 + 1', '2', '```', '', 'That is all.']
    """
    parts = doctest.DocTestParser().parse(textwrap.dedent(text))
    found, examples = list[str](), list[str]()
    for part in parts:
        if isinstance(part, doctest.Example):
            lines = part.source.splitlines()
            examples += [f">>> {lines[0]}", *(f"... {line}" for line in lines[1:]), *part.want.splitlines()]
        elif part.strip():
            found += [_block(examples), part.strip("\n")]
            examples = []
        elif examples and part:
            examples.append("")
    return "\n\n".join(filter(None, [*found, _block(examples)]))


def _block(examples: list[str]) -> str:
    return "\n".join(["```python", *examples, "```"]) if examples else ""
