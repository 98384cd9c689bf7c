"""`Trainer.compile`: "off", "xla" or "auto", or a word per update."""

from collections.abc import Mapping

from core.errors import ConfigurationError, did_you_mean, shown

OFF, XLA, AUTO = "off", "xla", "auto"
WORDS = {True: XLA, False: OFF}  # values of old versions
Compile = str | Mapping[str, str]


def compile_words(given: object) -> Compile:
    """Normalises `Trainer.compile` to one word, as "xla", or to a word per update, as `{"net": "xla"}`."""
    if isinstance(given, Mapping):
        return {str(name): _word(value, f"`Trainer.compile` of `{name}`", (OFF, XLA)) for name, value in given.items()}
    return _word(given, "`Trainer.compile`", (OFF, XLA, AUTO))


def what_to_compile(words: Compile) -> bool | list[str]:
    """Converts `words` to the argument `compile` of `TrainStep`. "auto" is decided later, and becomes False."""
    if isinstance(words, Mapping):
        return [name for name, word in words.items() if word == XLA]
    return words == XLA


def _word(given: object, what: str, known: tuple[str, ...]) -> str:
    word = WORDS[given] if isinstance(given, bool) else given
    if not isinstance(word, str) or word not in known:
        *others, last = (f'"{name}"' for name in known)
        near = did_you_mean(given, known) if isinstance(given, str) else ""
        raise ConfigurationError(
            f"{what} is {shown(given)}; give {', '.join(others)} or {last}, or by update: "
            f'`Trainer.compile = {{"net": "xla"}}`.{near} See docs/make-it-fast.md#xla.'
        )
    return word
