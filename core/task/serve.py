"""The functions that a task exports: from named tensors to named tensors.

def serve(self, features):
    return {"classify": Served(self.classify, {"image": features["image"]}, scores=["logits"])}

def classify(self, batch):
    return {"logits": self.net(batch["image"])}
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean, shown
from core.task.loss import Batch


@dataclasses.dataclass(frozen=True)
class Served:
    """An exported function: `function(batch)` reads the tensors in `inputs`, and returns tensors by name.

    `function` must be deterministic. The first axis of each tensor is the rows; the size None means any number. An
    export is compared with the task on the source's examples. If inputs aren't features (latents, a cache),
    `examples(batch)` makes all inputs from a batch of the source. For outputs named in `scores`, only the index of the
    largest value along the last axis is compared: a class, or the next token.
    """

    function: Callable[[Batch], Batch]
    inputs: Mapping[str, tf.TensorSpec]
    _: dataclasses.KW_ONLY
    examples: Callable[[Batch], Batch] | None = None
    scores: Sequence[str] = ()

    def inputs_of(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `{input name: tensor}` for `batch`, a batch of the source's examples."""
        found = batch if self.examples is None else self.examples(batch)
        return {name: found[name] for name in self.inputs}

    def __call__(self, batch: Batch) -> Batch:
        return self.function(_Given({name: batch[name] for name in self.inputs}))


class _Given(dict[str, tf.Tensor]):
    def __missing__(self, key: str) -> tf.Tensor:
        raise ConfigurationError(
            f"a function that is served reads `{key}`, but its inputs are {listed(self)}: add it to those of its "
            f"`Served`.{did_you_mean(key, self)}"
        )


def checked_serve(task: str, served: object, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
    """Returns the result of a task's `serve(features)`, after checking that it can be exported."""
    if not (isinstance(served, Mapping) and served and all(isinstance(x, Served) for x in served.values())):
        raise ConfigurationError(
            f'`serve` of `{task}` returned {shown(served)}; return a function or more by name: `{{"predict": '
            'Served(self.predict, {"x": features["x"]})}`.'
        )
    for name, each in served.items():
        for each_name in (name, *each.inputs):
            if not (isinstance(each_name, str) and each_name.isidentifier()):
                raise ConfigurationError(
                    f"`serve` of `{task}` has the name {shown(each_name)}: names in an export consist of letters, "
                    "digits and _."
                )
        unknown = [key for key in each.inputs if key not in features]
        if unknown and each.examples is None:
            raise ConfigurationError(
                f"`{name}` of `{task}.serve` reads `{unknown[0]}`, but the source has no such feature; it has "
                f"{listed(features)}.{did_you_mean(unknown[0], features)} What no source has is made for comparing: "
                f'`Served(..., examples=lambda batch: {{"{unknown[0]}": ...}})`.'
            )
    return dict(served)
