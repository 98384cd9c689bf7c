"""Flags, in process: accepted command lines, and refused mistakes."""

import logging as standard_logging
import os
import sys

import pytest
import tensorflow as tf
from absl import flags as absl_flags
from absl import logging
from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from core.errors import EXIT_CODES, ConfigurationError
from tests.commands import one_paragraph
from trainers.main import MODES, main, parse
from trainers.process.application import start_logging
from trainers.process.flags import parse_flags

FILE = "--gin_file=a.gin"
MISTAKES = {
    "nothing": ([], ["`--gin_file` is missing"]),
    "unknown flag": ([FILE, "--steps=3"], ["`--steps=3`", "--gin_param='Trainer.steps=9'"]),
    "misspelt flag": ([FILE, "--workdri=x"], ["Did you mean `--workdir`?"]),
    "dash for underline": (["--gin-file=a.gin"], ["Did you mean `--gin_file`?"]),
    "abbreviation": ([FILE, "--work=x"], ["`--work=x`", "Did you mean `--workdir`?"]),
    "short abbreviation": ([FILE, "--kill=3"], ["Did you mean `--kill_after_step`?"]),
    "no value at the end": ([FILE, "--mode"], ["`--mode` has no value"]),
    "no value before a flag": (["--gin_file", "--mode=train"], ["`--gin_file` has no value"]),
    "empty value": ([FILE, "--workdir="], ["`--workdir=`", "empty"]),
    "no number": ([FILE, "--samples=abc"], ["`--samples` is 'abc'", "an integer"]),
    "too small a number": ([FILE, "--mode=sample", "--samples=0"], ["`--samples` is 0"]),
    "given twice": ([FILE, "--workdir=a", "--workdir=b"], ["`--workdir=b`", "is given twice"]),
    "given as both": ([FILE, "--eager", "--noeager"], ["`--noeager`", "is given twice"]),
    "no for a text": ([FILE, "--nogin_file"], ["`--nogin_file`", "Did you mean `--gin_file`?"]),
    "no with a value": ([FILE, "--noeager=false"], ["`--noeager` is 'false'", "switch"]),
    "no switch": ([FILE, "--eager=maybe"], ["`--eager` is 'maybe'", "`--eager` or `--noeager`"]),
    "switch with a word": ([FILE, "--eager", "false"], ["`false` belongs to no flag"]),
    "stray word": ([FILE, "summary"], ["`summary` belongs to no flag"]),
    "flag without dashes": (["gin_file=a.gin"], ["Did you mean `--gin_file=a.gin`?"]),
    "two dashes": ([FILE, "--", "--eager"], ["`--` belongs to no flag"]),
    "unknown mode": ([FILE, "--mode=trian"], ["'trian'", "summary", "Did you mean `train`?"]),
    "undefok": ([FILE, "--undefok=steps", "--steps=3"], ["`--undefok=steps`"]),
    "absl's own flags": ([FILE, "--pdb"], ["`--pdb`"]),
    "only for training": ([FILE, "--mode=evaluate", "--eager"], ["`--eager` has no effect with `--mode=evaluate`"]),
    "crash of step 0": ([FILE, "--mode=summary", "--kill_after_step=0"], ["`--kill_after_step` has no effect"]),
    "only for samples": ([FILE, "--samples=3"], ["`--samples` has no effect with `--mode=train`"]),
    "only without images": ([FILE, "--mode=sample", "--samples=3", "--images=x"], ["`--samples`", "`--images`"]),
    "only for a checkpoint": ([FILE, "--checkpoint=best"], ["`--checkpoint` has no effect with `--mode=train`"]),
    "no checkpoint": ([FILE, "--mode=evaluate", "--checkpoint=latest"], ["`--checkpoint` is 'latest'"]),
    "misspelt format": ([FILE, "--mode=export", "--format=tflight"], ["'tflight'", "Did you mean `tflite`?"]),
    "misspelt weights": ([FILE, "--mode=export", "--weights=int9"], ["'int9'", "Did you mean `int8`?"]),
    "weights that a format hasn't": (
        [FILE, "--mode=export", "--format=tflite", "--weights=bfloat16"],
        ["`--weights` is bfloat16", "--format=saved_model"],
    ),
    "only for an export": ([FILE, "--weights=int8"], ["`--weights` has no effect with `--mode=train`"]),
    "no flag file": (["--flagfile=none.flags"], ["`--flagfile=none.flags`", "No such file"]),
    "no name of a flag file": (["--flagfile"], ["`--flagfile` has no value"]),
    "folder as a flag file": (["--flagfile=/"], ["`--flagfile=/`", "directory"]),
    "flag file in a circle": (["--flagfile=circle.flags"], ["in `circle.flags`", "in `back.flags`", "includes itself"]),
    "mistake in a flag file": (["--flagfile=wrong.flags"], ["in `wrong.flags`", "Did you mean `--workdir`?"]),
    "space in a flag file": (["--flagfile=space.flags"], ["in `space.flags`", "`--workdir x`", "`=`"]),
    "twice in a flag file": (["--flagfile=twice.flags"], ["in `twice.flags`", "is given twice"]),
    "pipe as a flag file": (["--flagfile=pipe.flags"], ["`--flagfile=pipe.flags`", "a pipe or a device"]),
    "device as a flag file": (["--flagfile=/dev/zero"], ["`--flagfile=/dev/zero`", "a pipe or a device"]),
    "flag file with a NUL byte": (["--flagfile=nul.flags"], ["`--flagfile=nul.flags`", "NUL"]),
    "endless flag file": (["--flagfile=endless.flags"], ["`--flagfile=endless.flags`", "bytes, more than"]),
    "flag files without end": (["--flagfile=0.flags"], ["`--flagfile=50.flags`", "join them"]),
    "a million million samples": ([FILE, "--mode=sample", f"--samples={10**12}"], ["at most 65536"]),
    "flag file of bytes": (["--flagfile=bytes.flags"], ["`--flagfile=bytes.flags`", "can't decode"]),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with flag files."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "circle": "--flagfile=back.flags",
        "back": "--flagfile=circle.flags",
        "wrong": "# a comment\n\n--workdri=x\n",
        "space": "--workdir x",
        "twice": "--workdir=x\n--workdir=y",
        "good": "# a run\n// another comment\n--gin_file=a.gin\n  --gin_param=a.b = 'c d'\n--workdir=x\n",
        "outer": "--gin_param=first.one = 1\n--flagfile=good.flags\n--mode=summary\n",
    }.items():
        (tmp_path / f"{name}.flags").write_text(text)
    (tmp_path / "bytes.flags").write_bytes(b"\xff")
    (tmp_path / "nul.flags").write_bytes(b"--gin_file=a\0b")
    os.mkfifo(tmp_path / "pipe.flags")
    (tmp_path / "endless.flags").touch()
    os.truncate(tmp_path / "endless.flags", 2**40)
    for i in range(60):
        (tmp_path / f"{i}.flags").write_text(f"--flagfile={i + 1}.flags")
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_flag_mistake_is_one_paragraph(name, here, capfd):
    words, says = MISTAKES[name]
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    one_paragraph(err, *says)


def test_switches():
    for words in ([], ["--noeager"], ["--eager=false"]):
        assert parse([FILE, *words]).eager is False
    for words in (["--eager"], ["--eager=true"], ["-eager"]):
        assert parse([FILE, *words]).eager is True


def test_value_follows_a_space_or_an_equals_sign():
    flags = parse(["--gin_file", "a", "--gin_file=b", "--gin_param", "c = 'd=e'", "-v", "-1"])
    assert flags.gin_file == ["a", "b"]
    assert flags.gin_param == ["c = 'd=e'"]
    assert (flags.verbosity, flags.workdir, flags.mode) == (-1, None, "train")
    assert parse([FILE, "--mode", "sample", "--checkpoint", "7"]).samples == 64


def test_flags_of_other_modes_are_defined_only_if_one_is_given():
    assert "samples" not in parse([FILE])
    flags = parse([FILE, "--mode=sample", "--samples=3"])
    assert flags.samples == 3
    assert "capsule" in flags


def test_switch_that_is_off_is_taken_in_any_mode():
    assert parse([FILE, "--mode=evaluate", "--noeager"]).mode == "evaluate"


def test_flag_files(here):
    flags = parse(["--flagfile=outer.flags", "--workdir=y"])
    assert flags.gin_file == ["a.gin"]
    assert flags.gin_param == ["first.one = 1", "a.b = 'c d'"]
    assert flags.mode == "summary"
    assert flags.workdir == "y"  # values behind the file override it


def test_command_line_leaves_nothing_to_the_next():
    before = set(absl_flags.FLAGS)
    first = parse([FILE, "--gin_param=x = 1", "--eager", "--workdir=w"])
    second = parse([FILE])
    assert first.gin_param == ["x = 1"]
    assert (second.gin_file, second.gin_param, second.eager, second.workdir) == (["a.gin"], [], False, None)
    assert set(absl_flags.FLAGS) == before


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--helpfull"], [FILE, "--help", "--steps=3"]])
def test_help_lists_flags_modes_and_exit_codes(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line.strip() for line in out.splitlines()]
    for name, text in MODES.items():
        assert any(line.split(maxsplit=1) == [name, text] for line in lines), name
    for code, text in EXIT_CODES.items():
        assert f"{code:<4}{text}" in lines
    for name in ("gin_file", "gin_param", "workdir", "mode", "[no]eager", "[no]verbose", "samples", "images"):
        assert any(line.startswith(f"--{name}: ") for line in lines)
    assert ("--flagfile: " in out) == ("--helpfull" in words)


def test_other_command_defines_its_own_flags():
    def define(flag_values):
        absl_flags.DEFINE_float("rate", 0.5, "how fast", flag_values=flag_values)

    assert parse_flags(["--rate=2"], define, usage="a command").rate == 2.0
    with pytest.raises(ConfigurationError, match=r"`--mode=train`.* Ask main"):
        parse_flags(["--mode=train"], define, usage="a command", hint=" Ask main.")


@pytest.fixture
def restored_logging():
    """Restores the loggers."""
    loggers = [standard_logging.getLogger(name) for name in (None, "tensorflow")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    logging.set_verbosity(logging.WARNING)
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers = handlers


@pytest.mark.parametrize(
    ("verbosity", "heard", "of_tensorflow"),
    [(1, "DIWE", "DIWE"), (0, "IWE", "WE"), (-1, "WE", "WE"), (-2, "E", "E")],
)
def test_verbosity(verbosity, heard, of_tensorflow, restored_logging, capsys):
    start_logging(verbosity)
    log = standard_logging.getLogger("mine")
    for path, expected in ((__file__, heard), (functional_saver.__file__, of_tensorflow)):
        for level in ("DEBUG", "INFO", "WARNING", "ERROR"):
            number = getattr(standard_logging, level)
            if log.isEnabledFor(number):
                log.handle(log.makeRecord("mine", number, path, 1, level[0], (), None))
        said = capsys.readouterr().err.splitlines()
        assert [line.split("] ")[1] for line in said] == list(expected)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (cluster_coordinator, "Worker /job:worker/replica:0/task:0 failed with UnavailableError()"),
        (polymorphic_function, "5 out of the last 5 calls to <function MultiDeviceSaver.save.<locals>"),
    ],
)
def test_unavoidable_messages_are_shown_at_debug_verbosity_alone(module, text, restored_logging, capsys):
    log = standard_logging.getLogger("mine")
    for verbosity, said in ((0, False), (1, True)):
        start_logging(verbosity)
        log.handle(log.makeRecord("mine", standard_logging.ERROR, module.__file__, 1, text, (), None))
        assert (text in capsys.readouterr().err) == said


def test_tensorflow_says_nothing_twice(restored_logging, capsys):
    standard_logging.getLogger("tensorflow").addHandler(standard_logging.StreamHandler(sys.stderr))
    start_logging(0)
    tf.get_logger().warning("once")
    assert capsys.readouterr().err.count("once") == 1


def test_logging_follows_stderr(restored_logging, tmp_path, monkeypatch, capsys):
    start_logging(0)
    with open(tmp_path / "other", "w") as other:
        monkeypatch.setattr(sys, "stderr", other)
        logging.info("elsewhere")
        monkeypatch.undo()
    logging.info("here")
    assert (tmp_path / "other").read_text().endswith("] elsewhere\n")
    assert capsys.readouterr().err.endswith("] here\n")
