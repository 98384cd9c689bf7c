"""`python -m trainers.tokenize --files=PATTERN --out=FILE [--bpe=FILE [--train_bpe=8192]] [--separator=TEXT]`

Converts texts to a file of tokens for `token_file`. The command may be stopped or killed at any time; the same command
resumes, with the same result.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import EXIT_CODES, INTERRUPTED, ConfigurationError, DataError, NoRoomError, PreemptedError
from trainers.errors.exit_report import report
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags
from trainers.process.signals import Preemption
from trainers.process.standard_streams import native_stderr_in

if TYPE_CHECKING:
    from core.data.corpus import Text
    from core.data.token_writer import Place, TokenWriter
    from core.data.tokenizers import Tokenizer

SAVE_EVERY = 16 << 20  # bytes of text
CODES = (
    0,
    1,
    ConfigurationError.exit_code,
    DataError.exit_code,
    NoRoomError.exit_code,
    PreemptedError.exit_code,
    INTERRUPTED,
)
USAGE = """python -m trainers.tokenize --files=PATTERN --out=FILE [--bpe=FILE [--train_bpe=8192]] [--separator=TEXT]

Converts texts to a file of tokens for `token_file`. The same command resumes after a stop.

exit codes:
""" + "\n".join(f"  {code:<4}{EXIT_CODES[code]}" for code in CODES)


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    # `path_of` decodes names as UTF-8, as in a file of flags; this does so whatever the locale.
    words = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in words]
    flags = parse_flags(words, _define, usage=USAGE)
    if not flags.files:
        raise ConfigurationError("`--files` is missing: give texts, as `--files=corpus` or `--files='books/**/*.txt'`.")
    if not flags.out:
        raise ConfigurationError("`--out` is missing: give the file for the tokens, as `--out=corpus.tokens`.")
    if flags.train_bpe is not None and not flags.bpe:
        raise ConfigurationError("`--train_bpe` has no effect without `--bpe`: give the file for the byte pairs.")
    return flags


def _define(flag_values: FlagValues) -> None:
    text = functools.partial(absl_flags.DEFINE_string, flag_values=flag_values)
    absl_flags.DEFINE_multi_string(
        "files", [], "texts: a file, a folder, or a pattern with * and **; repeat for more", flag_values=flag_values
    )
    text("out", None, "the file of tokens")
    text("bpe", None, "the file of the byte pairs (default: tokens are bytes)")
    absl_flags.DEFINE_integer(
        "train_bpe",
        None,
        "first learn this many byte pairs from the texts, and write them to --bpe",
        flag_values=flag_values,
    )
    text("separator", None, "separator of documents within a file (default: each file is one document)")
    absl_flags.DEFINE_boolean("verbose", False, "show tracebacks of errors", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Makes the file that the flags describe. Returns the exit code."""
    start_logging(flags.verbosity)
    preemption = Preemption()
    with preemption.granted(), native_stderr_in(None):
        try:
            _run(flags, preemption)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return report(error, verbose=flags.verbose)
    return 0


def _run(flags: FlagValues, preemption: Preemption) -> None:
    from core.data.bpe import bpe, check_vocabulary
    from core.data.corpus import separator_of
    from core.data.files import path_of
    from core.data.token_writer import finished, partial_folder, there_already, token_writer
    from core.data.tokenizers import byte_tokens

    if flags.train_bpe is not None:
        check_vocabulary(flags.train_bpe, name="--train_bpe")
    out, pairs = path_of(flags.out), path_of(flags.bpe) if flags.bpe else None
    if out.exists() and not partial_folder(out).exists():
        raise there_already(out)
    texts = _texts(flags.files, [path for path in (out, partial_folder(out), pairs) if path])
    separator = separator_of(flags.separator)
    if pairs and flags.train_bpe is not None:
        _learn(pairs, texts, separator, flags.train_bpe, preemption)
    tokenizer = bpe(flags.bpe) if flags.bpe else byte_tokens()
    plan = {"tokenizer": tokenizer.identity, "separator": repr(separator), "set of texts": _digest(texts)}
    place = finished(out, plan=plan)
    if place is None:
        with token_writer(out, tokenizer, plan=plan) as writer:
            place = writer.place
            if place.tokens:
                print(f"resuming after {place.tokens:,} tokens of {out}", flush=True)
            _write(writer, texts, separator, preemption)
    print(_counted(place, tokenizer, len(texts), out), flush=True)


def _texts(patterns: Sequence[str], own: Sequence[Path]) -> list["Text"]:
    """Returns the texts that aren't empty, without `own`, the files of this command. Warns of empty texts."""
    from core.data.corpus import list_texts, look_at, warn_of_empty

    made = {Path(os.path.realpath(path)) for path in own}
    real = {path: Path(os.path.realpath(path)) for path in list_texts(*patterns)}
    texts = [look_at(path) for path in real if not made & {real[path], *real[path].parents}]
    warn_of_empty(texts)
    if not any(text.size for text in texts):
        raise DataError(f"`--files` names {len(texts)} texts, all of them empty: give some text.")
    return [text for text in texts if text.size]


def _digest(texts: Sequence["Text"]) -> str:
    """Returns a hash of the names, sizes and times of the texts."""
    files = [(os.fsencode(os.path.realpath(text.path)).hex(), text.size, text.modified) for text in texts]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _learn(
    path: Path, texts: Sequence["Text"], separator: bytes | None, vocabulary: int, preemption: Preemption
) -> None:
    """Learns byte pairs from all texts and writes them to `path`, unless this file exists."""
    from core.data.bpe import train_bpe
    from core.data.corpus import open_text, pieces

    if path.exists():
        print(f"{path} exists, and its byte pairs are used; remove it to learn new ones", flush=True)
        return

    def read() -> Iterator[bytes]:
        for text in texts:
            with open_text(text.path) as file:
                for piece in pieces(file, separator=separator):
                    yield piece.text
                    advance(len(piece.text))
                    if preemption.signal:
                        raise PreemptedError(
                            f"stopped by {preemption.name} before the byte pairs were learnt: run it again."
                        )

    with _bar("learning byte pairs", sum(text.size for text in texts)) as advance:
        train_bpe(read(), path, vocabulary=vocabulary)


def _write(writer: "TokenWriter", texts: Sequence["Text"], separator: bytes | None, preemption: Preemption) -> None:
    """Converts texts to tokens from the writer's position on."""
    from core.data.corpus import open_text, pieces

    place, total = writer.place, sum(text.size for text in texts)
    done = sum(text.size for text in texts[: place.file]) + place.offset
    saved = done
    with _bar("writing tokens", total, done=done) as advance:
        for text in texts[place.file :]:
            with open_text(text.path) as file:
                for piece in pieces(file, separator=separator, offset=place.offset, inside=place.inside):
                    if piece.next_offset > text.size:  # a growing text may be endless
                        text.check_unchanged(file)
                    writer.append(piece.tokens(writer.tokenizer), begins_document=piece.begins_document)
                    read = piece.next_offset - place.offset
                    place.offset, place.inside = piece.next_offset, not piece.ends_document
                    place.text_bytes += len(piece.text)
                    done += read
                    advance(read)
                    if done - saved >= SAVE_EVERY or preemption.signal:
                        writer.save()
                        saved = done
                    if preemption.signal:
                        raise PreemptedError(
                            f"stopped by {preemption.name}: {done:,} of {total:,} bytes are tokens, and saved. Run the "
                            "same command again to resume."
                        )
                text.check_unchanged(file)
            place.file, place.offset, place.inside = place.file + 1, 0, False
        if not place.tokens:
            raise DataError(f"`--files` names {len(texts)} texts that contain only separators: give some text.")
        writer.finish()


def _counted(place: "Place", tokenizer: "Tokenizer", files: int, out: Path) -> str:
    share = place.text_bytes / (place.tokens - place.documents)
    return (
        f"{files:,} files, {place.documents:,} documents, {place.text_bytes:,} bytes of text: {place.tokens:,} tokens, "
        f"{share:.2f} bytes each, of a vocabulary of {tokenizer.vocabulary:,}, in {out}"
    )


@contextlib.contextmanager
def _bar(title: str, total: int, *, done: int = 0) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda count: progress.advance(task, count)


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
