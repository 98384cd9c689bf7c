"""Maps an error to its documentation page: by the file that raised the error, or else by the exit code.

A message that already names a page is unchanged. Some errors have no page.
"""

import os
from collections.abc import Sequence

HELPERS = ("core/arguments.py", "core/choice.py")  # checks of their callers' arguments
PLACES = {  # the first prefix of a file's path counts
    "core/checkpoint/keep": "docs/checkpoints.md#which-checkpoints-stay",
    "core/checkpoint": "docs/checkpoints.md#what-goes-wrong",
    "core/data/augment": "docs/input.md#images-in-folders",
    "core/data/bpe": "docs/input.md#tokenizers",
    "core/data/corpus": "docs/input.md#text",
    "core/data/csv": "docs/input.md#tables",
    "core/data/image_": "docs/input.md#what-goes-wrong",
    "core/data/images": "docs/gans.md#pix2pix",
    "core/data/labelled_images": "docs/input.md#images-in-folders",
    "core/data/markov": "docs/input.md#text",
    "core/data/mixture": "docs/input.md#orders",
    "core/data/packed": "docs/input.md#sequences-of-unlike-length",
    "core/data/parquet": "docs/input.md#tables",
    "core/data/reordered": "docs/input.md#orders",
    "core/data/stream": "docs/input.md#errors-of-streams",
    "core/data/tables": "docs/input.md#tables",
    "core/data/tfrecord": "docs/input.md#tfrecord",
    "core/data/token_": "docs/input.md#a-file-of-tokens",
    "core/data/tokenizers": "docs/input.md#tokenizers",
    "core/data": "docs/input.md",
    "core/distribution/shared_rows": "docs/your-own-architecture.md#4-losses-that-compare-rows",
    "core/distribution/strategies": "docs/many-machines.md",
    "core/distribution": "docs/choose-a-strategy.md#one-machine-mirrored",
    "core/engine/accumulate": "docs/cookbook.md#a-custom-loop-from-the-pieces",
    "core/engine": "docs/testing-your-step.md#what-is-refused",
    "core/layers/shapes": "docs/testing-your-step.md#what-is-refused",
    "core/layers": "docs/parts.md#layers",
    "core/losses/embedding": "docs/testing-your-step.md#what-is-refused",
    "core/losses": "docs/parts.md#losses",
    "core/metrics": "docs/parts.md#metrics",
    "core/module": "docs/cookbook.md#maml-gradients-through-gradients",
    "core/optimizers/averaging": "docs/parts.md#transforms",
    "core/optimizers/plateau": "docs/parts.md#transforms",
    "core/optimizers/schedules": "docs/parts.md#schedules",
    "core/optimizers": "docs/parts.md#optimizers",
    "core/parallel/local_steps": "docs/choose-a-strategy.md#local-steps",
    "core/parallel/mesh/layouts": "docs/choose-a-strategy.md#layouts",
    "core/parallel/mesh": "docs/choose-a-strategy.md#a-mesh-tensor-parallel",
    "core/parallel/parameter_server": "docs/choose-a-strategy.md#asynchronous-parameter-servers",
    "core/parallel/places": "docs/choose-a-strategy.md#a-mesh-tensor-parallel",
    "core/precision": "docs/fit-into-memory.md#mixed-precision",
    "core/random": "docs/testing-your-step.md#what-is-refused",
    "core/task/reads": "docs/input.md",
    "core/task/serve": "docs/use-a-run.md#export-your-task",
    "core/task": "docs/testing-your-step.md#what-is-refused",
    "core/tracing": "docs/testing-your-step.md#what-is-refused",
    "core/weights": "docs/use-a-run.md#warm-start-and-fine-tune",
    "core/cluster": "docs/many-machines.md",
    "models/classifiers": "docs/your-own-architecture.md",
    "models/language/gpt2": "docs/use-a-run.md#warm-start-and-fine-tune",
    "models/language/sampling": "docs/cookbook.md#text-generation",
    "models/language": "docs/cookbook.md#language-model",
    "models": "docs/gans.md",
    "trainers/replay/repeat_steps": "docs/troubleshooting.md#any-other-step",
    "trainers/errors/bad_examples": "docs/input.md#what-goes-wrong",
    "trainers/loop/run_hooks": "docs/runs.md#hooks",
    "trainers/replay/capsule": "docs/troubleshooting.md#a-loss-that-isnt-finite",
    "trainers/dry_run": "docs/fit-into-memory.md",
    "trainers/modes/train_eagerly": "docs/troubleshooting.md#any-other-step",
    "trainers/average": "docs/use-a-run.md#average-checkpoints",
    "trainers/curvature": "docs/use-a-run.md#curvature",
    "trainers/evaluation": "docs/use-a-run.md#evaluate",
    "trainers/experiment": "docs/running.md#configurations",
    "trainers/export": "docs/use-a-run.md#export",
    "trainers/process/flags": "docs/running.md#flags",
    "trainers/process/mode_flags": "docs/running.md#modes",
    "trainers/gin_audit": "docs/running.md#configurations",
    "trainers/options/eval_sources": "docs/use-a-run.md#several-evaluation-sources",
    "trainers/hooks/norms": "docs/runs.md#hooks-that-look-closer",
    "trainers/hooks/early_stopping": "docs/checkpoints.md#ending-when-it-gets-no-better",
    "trainers/hooks": "docs/runs.md#hooks",
    "trainers/options/sizes": "docs/fit-into-memory.md",
    "trainers/options/checkpoints": "docs/checkpoints.md#which-checkpoints-stay",
    "trainers/launch": "docs/many-machines.md",
    "trainers/process/watchdog": "docs/checkpoints.md#a-run-that-hangs",
    "trainers/python_api/load": "docs/use-a-run.md",
    "trainers/main": "docs/running.md#flags",
    "trainers/modes/diagnose": "docs/make-it-fast.md#diagnose",
    "trainers/modes/dry_run": "docs/fit-into-memory.md",
    "trainers/modes/evaluate_continuously": "docs/use-a-run.md#evaluate-during-training",
    "trainers/modes/export": "docs/use-a-run.md#export",
    "trainers/modes/replay": "docs/troubleshooting.md#a-loss-that-isnt-finite",
    "trainers/modes/resume_check": "docs/running.md#stopping-and-resuming",
    "trainers/modes/tune": "docs/make-it-fast.md#tune",
    "trainers/modes": "docs/running.md#modes",
    "trainers/options/bad_steps": "docs/checkpoints.md#bad-steps",
    "trainers/loop/profiler": "docs/runs.md#profiles",
    "trainers/python_api": "docs/use-a-run.md#train-from-python",
    "trainers/report": "docs/runs.md#a-page-to-send",
    "trainers/runs": "docs/runs.md",
    "trainers/loop/run_parts": "docs/running.md#stopping-and-resuming",
    "trainers/process/parameter_server": "docs/choose-a-strategy.md#asynchronous-parameter-servers",
    "trainers/session": "docs/running.md#stopping-and-resuming",
    "trainers/settings": "docs/running.md#configurations",
    "trainers/lifecycle/start": "docs/running.md#stopping-and-resuming",
    "trainers/sweep": "docs/runs.md#a-grid-of-runs",
    "trainers/tokenize": "docs/input.md#a-file-of-tokens",
    "trainers/verify_machine": "docs/first-run.md#more-than-one-device",
    "trainers/lifecycle/train_to_end": "docs/use-a-run.md#warm-start-and-fine-tune",
    "trainers/workdir": "docs/running.md#the-folder-of-a-run",
}
PAGES = {  # by exit code, if no place is known
    3: "docs/troubleshooting.md#a-loss-that-isnt-finite",
    4: "docs/input.md#what-goes-wrong",
    5: "docs/checkpoints.md#what-goes-wrong",
    6: "docs/checkpoints.md",
    7: "docs/running.md#exit-codes",
    8: "docs/running.md#does-it-fit",
}


def page_of(files: Sequence[str], code: int) -> str | None:
    """Returns the page of the docs for an error with exit code `code`, or None.

    `files` are the project's files in its traceback, innermost last.
    """
    if code in (2, 4, 5):  # other codes don't depend on the place
        raised = [path for name in files if not (path := name.replace(os.sep, "/")).startswith(HELPERS)]
        for place, page in PLACES.items() if raised else ():
            if raised[-1].startswith(place):
                return page
    return PAGES.get(code)
