"""`python -m trainers.tokenize --files=PATTERN --out=FILE [--bpe=FILE [--train_bpe=8192]] [--separator=TEXT]`

Texts become a file of tokens, once, for `token_file` to read. It may be stopped or killed at any time: the same command
goes on, and ends in the same bytes.
"""

if __name__ == "__main__":
    from trainers.beginning import begin

    begin()

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import EXIT_CODES, INTERRUPTED, ConfigurationError, DataError, NoRoomError, PreemptedError
from trainers.app import refuse, run_app, start_logging
from trainers.blame import report
from trainers.flags import parse_flags
from trainers.native_stderr import native_stderr_in
from trainers.preemption import Preemption

if TYPE_CHECKING:
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

Makes a file of tokens of texts, for `token_file` to read. The same command goes on where it was stopped.

exit codes:
""" + "\n".join(f"  {code:<4}{EXIT_CODES[code]}" for code in CODES)


def main(words: Sequence[str]) -> int:
    """Runs the command with these words behind its name; returns its exit code."""
    try:
        flags = parse(words)
    except ConfigurationError as error:
        return refuse(error)
    return run(flags)


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags; raises a `ConfigurationError` for a wrong one."""
    flags = parse_flags(words, _define, usage=USAGE)
    if not flags.files:
        raise ConfigurationError("`--files` is missing: name texts, as `--files=corpus` or `--files='books/**/*.txt'`.")
    if not flags.out:
        raise ConfigurationError("`--out` is missing: say where the tokens go, as `--out=corpus.tokens`.")
    if flags.train_bpe is not None and not flags.bpe:
        raise ConfigurationError("`--train_bpe` has no effect without `--bpe`: say where the byte pairs are kept.")
    return flags


def _define(flag_values: FlagValues) -> None:
    text = functools.partial(absl_flags.DEFINE_string, flag_values=flag_values)
    absl_flags.DEFINE_multi_string(
        "files", [], "texts: a file, a folder, or a pattern with * and **; again for more", flag_values=flag_values
    )
    text("out", None, "the file of tokens")
    text("bpe", None, "the file of the byte pairs; tokens are bytes if left out")
    absl_flags.DEFINE_integer(
        "train_bpe", None, "learn so many byte pairs from the texts first, into --bpe", flag_values=flag_values
    )
    text("separator", None, "what stands between the documents of a file; each file is one if left out")
    absl_flags.DEFINE_boolean("verbose", False, "show tracebacks with errors", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Makes the file that the flags describe; returns the exit code."""
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
    from core.data.token_writer import finished, partial_folder, there_already, token_writer
    from core.data.tokenizers import byte_tokens

    if flags.train_bpe is not None:
        check_vocabulary(flags.train_bpe, name="--train_bpe")
    out = Path(flags.out).expanduser().absolute()
    if out.exists() and not partial_folder(out).exists():
        raise there_already(out)
    own = [out, *([Path(flags.bpe).expanduser().absolute()] if flags.bpe else [])]
    sizes = _sizes(flags.files, own)
    separator = flags.separator.encode() if flags.separator else None
    if flags.train_bpe is not None:
        _learn(own[-1], sizes, separator, flags.train_bpe, preemption)
    tokenizer = bpe(str(own[-1])) if flags.bpe else byte_tokens()
    plan = {"tokenizer": tokenizer.identity, "separator": repr(separator), "set of texts": _digest(sizes)}
    place = finished(out, plan=plan)
    if place is None:
        with token_writer(out, tokenizer, plan=plan) as writer:
            place = writer.place
            if place.tokens:
                print(f"going on behind {place.tokens:,} tokens of {out}", flush=True)
            _write(writer, sizes, separator, preemption)
    print(_counted(place, tokenizer, len(sizes), out), flush=True)


def _sizes(patterns: Sequence[str], own: Sequence[Path]) -> dict[Path, int]:
    """Returns the texts that aren't empty, with their bytes; those that are empty are named."""
    from core.data.corpus import list_texts, text_size, warn_of_empty
    from core.data.token_writer import partial_folder

    made = partial_folder(own[0])
    paths = dict.fromkeys(path for pattern in patterns for path in list_texts(pattern))
    sizes = {path: text_size(path) for path in paths if path not in own and made not in path.parents}
    warn_of_empty(path for path, size in sizes.items() if not size)
    if not any(sizes.values()):
        raise DataError(f"`--files` names {len(sizes)} texts, and there is nothing in them: give some text.")
    return {path: size for path, size in sizes.items() if size}


def _digest(sizes: Mapping[Path, int]) -> str:
    """Returns what changes with the names, sizes and times of the texts."""
    files = [(os.fsencode(path).hex(), size, path.stat().st_mtime_ns) for path, size in sizes.items()]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _learn(
    path: Path, sizes: Mapping[Path, int], separator: bytes | None, vocabulary: int, preemption: Preemption
) -> None:
    """Learns byte pairs from all texts, if they aren't there from a run before."""
    from core.data.bpe import train_bpe
    from core.data.corpus import open_text, pieces

    if path.exists():
        print(f"{path} exists, and its byte pairs are used; remove it to learn them anew", flush=True)
        return

    def texts() -> Iterator[bytes]:
        for text in sizes:
            with open_text(text) as file:
                for piece in pieces(file, separator=separator):
                    yield piece.text
                    advance(len(piece.text))
                    if preemption.signal:
                        raise PreemptedError(f"stopped by {preemption.name} before it had learnt: run it again.")

    with _bar("learning byte pairs", sum(sizes.values())) as advance:
        train_bpe(texts(), path, vocabulary=vocabulary)


def _write(writer: "TokenWriter", sizes: Mapping[Path, int], separator: bytes | None, preemption: Preemption) -> None:
    """Turns texts into tokens from where the writer stands."""
    from core.data.corpus import open_text, pieces

    place, total = writer.place, sum(sizes.values())
    done = sum(list(sizes.values())[: place.file]) + place.offset
    saved = done
    with _bar("writing tokens", total, done=done) as advance:
        for path, size in list(sizes.items())[place.file :]:
            with open_text(path) as file:
                for piece in pieces(file, separator=separator, offset=place.offset, inside=place.inside):
                    if piece.next_offset > size:  # of a text that grows there may be no end
                        raise _changed(path, size)
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
                            "same command again to go on."
                        )
                if file.tell() != size:
                    raise _changed(path, size)
            place.file, place.offset, place.inside = place.file + 1, 0, False
        if not place.tokens:
            raise DataError(f"`--files` names {len(sizes)} texts with nothing but separators in them: give some text.")
        writer.finish()


def _changed(path: Path, size: int) -> DataError:
    now = path.stat().st_size
    return DataError(f"{path} had {size:,} bytes, and now {now:,}: leave it as it is until its tokens are written.")


def _counted(place: "Place", tokenizer: "Tokenizer", files: int, out: Path) -> str:
    share = place.text_bytes / (place.tokens - place.documents)
    return (
        f"{files:,} files, {place.documents:,} documents, {place.text_bytes:,} bytes of text: {place.tokens:,} tokens, "
        f"{share:.2f} bytes each, of a vocabulary of {tokenizer.vocabulary:,}, in {out}"
    )


@contextlib.contextmanager
def _bar(title: str, total: int, *, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Shows a bar, where somebody may look at it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda count: progress.advance(task, count)


if __name__ == "__main__":
    run_app(parse, run)
