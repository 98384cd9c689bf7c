"""`python -m trainers.weights --to=hf [--run=]FOLDER [--step=400] [--folder=DIR]`

Writes the weights of a run for another program.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.disk import write_whole
from core.errors import ConfigurationError, TapeloopError, did_you_mean, shown
from trainers.errors.exit_report import report
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags
from trainers.process.standard_streams import native_stderr_in

USAGE = """python -m trainers.weights --to=hf FOLDER [--step=400] [--folder=DIR]

Writes the weights of a run for another program, into DIR (default: the run's folder with `-hf`, `-timm` or
`-torchvision` added). The weights are those that evaluation reads: averages, if the run keeps any.

  hf           a `LanguageModel` like GPT-2, Llama, Mistral, Qwen2 or Qwen3, a `MaskedLanguageModel` (BERT), a
               `TextToText` (T5) or a `ViTClassifier`, for `from_pretrained` of `transformers`
  timm         a `ResNetClassifier`, `ViTClassifier` or `ConvNeXtClassifier`, as `model.safetensors` for
               `load_state_dict` of `timm`
  torchvision  the same for `torchvision`"""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    flags = parse_flags(words, _define, usage=USAGE, bare="run")
    if len(flags.run) != 1:
        raise ConfigurationError("give one run's folder, as `python -m trainers.weights --to=hf runs/a`.")
    if flags.to not in WRITERS:
        known = ", ".join(f"`{name}`" for name in WRITERS)
        raise ConfigurationError(
            f"`--to` is {shown(flags.to)}; give one of {known}.{did_you_mean(flags.to or '', WRITERS)}"
        )
    return flags


def _define(flag_values: FlagValues) -> None:
    text = absl_flags.DEFINE_string
    absl_flags.DEFINE_multi_string("run", [], "the folder of a run; `--run=` is optional", flag_values=flag_values)
    absl_flags.DEFINE_integer(
        "step", None, "the checkpoint's step (default: the newest)", lower_bound=0, flag_values=flag_values
    )
    text("to", None, f"the program: {', '.join(WRITERS)}", flag_values=flag_values)
    text("folder", None, "a folder that doesn't exist yet", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Writes the weights. Returns the exit code."""
    start_logging(flags.verbosity)
    try:
        with native_stderr_in(None):
            from core.weights import merge_all
            from trainers.python_api.load import load

            given = Path(flags.run[0])
            folder = Path(flags.folder) if flags.folder else given.with_name(f"{given.resolve().name}-{flags.to}")
            if folder.exists():
                raise ConfigurationError(f"`{folder}` exists: give another `--folder`, or remove it.")
            loaded = load(given, flags.step)
            merge_all(loaded.task)
            kind = WRITERS[flags.to](loaded.task, folder)
    except TapeloopError as error:
        return report(error, verbose=False)
    print(f"{given}, step {loaded.step:,}: written to `{folder}` as {kind}")
    return 0


def _write_hf(task: Any, folder: Path) -> str:
    from models import Transformer, ViT
    from models.classifiers.vit_weights import save_vit
    from models.language import T5, Bert
    from models.language.bert_weights import save_bert
    from models.language.pretrained import save_pretrained
    from models.language.t5_weights import save_t5

    net = _only(task, (Transformer, Bert, T5, ViT), "hf")
    if isinstance(net, ViT):
        return save_vit(net, folder)
    if isinstance(net, T5):
        return save_t5(net, folder)
    return save_bert(net, folder) if isinstance(net, Bert) else save_pretrained(net, folder)


def _write_state_dict(task: Any, folder: Path, *, program: str) -> str:
    from safetensors.numpy import save

    from models import ConvNeXt, ResNet, ViT
    from models.classifiers import timm_arrays, torchvision_arrays

    arrays = {"timm": timm_arrays, "torchvision": torchvision_arrays}[program]
    content = save(arrays(_only(task, (ResNet, ViT, ConvNeXt), program)), metadata={"format": "pt"})
    folder.mkdir(parents=True)
    write_whole({folder / "model.safetensors": content}, then="repeat the command")
    return f"a state dict of `{program}`"


def _only(task: Any, kinds: tuple[type[Any], ...], to: str) -> Any:
    found = [module for module in task.submodules if isinstance(module, kinds)]
    if len(found) != 1:
        names = " or ".join(f"`{kind.__name__}`" for kind in kinds)
        raise ConfigurationError(
            f"`--to={to}` writes a {names}, but the task `{type(task).__name__}` of this run has "
            f"{len(found) or 'none'}: use `trainers.load` and write the variables that you need."
        )
    return found[0]


WRITERS: Mapping[str, Callable[[Any, Path], str]] = {
    "hf": _write_hf,
    "timm": functools.partial(_write_state_dict, program="timm"),
    "torchvision": functools.partial(_write_state_dict, program="torchvision"),
}

main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
