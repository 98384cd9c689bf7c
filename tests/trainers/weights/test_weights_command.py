"""`python -m trainers.weights`: a run's weights in files of other programs, and its refusals."""

import functools

import pytest
import tensorflow as tf

import trainers
from core.errors import ConfigurationError
from core.layers import RotaryScaling
from core.optimizers import sgd
from core.random import Rng
from core.weights import Lora, begin_with
from models import LanguageModel, ResNetClassifier, TransformerConfig
from models.classifiers import resnet_weights
from models.language import llama_weights
from models.language.pretrained import family_of
from tests.commands import CONFIGS, one_paragraph, passed
from trainers.weights.__main__ import WRITERS, main

LLAMA = {
    "positions": "rotary", "rotary_base": 500.0, "norm": "rms", "feed_forward": "swiglu", "bias": False, "tied": False,
    "num_kv_heads": 1, "num_layers": 1, "size": 8, "num_heads": 2, "context": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights")
    params = [f"LanguageModel.{name} = {value!r}" for name, value in LLAMA.items() if name != "context"]
    params += [
        "context = 16",
        "Trainer.steps = 2",
        "Trainer.global_batch_size = 2",
        "Trainer.hooks = []",
        "Experiment.eval_source = None",
        "LanguageModel.lora = @Lora",
        "Lora.patterns = ['*/attention/*/w', 'tokens/w']",
        "Lora.rank = 2",
        "LanguageModel.rotary_scaling = @RotaryScaling()",
        "RotaryScaling.factor = 4.0",
        "RotaryScaling.context = 8",
        "adamw.no_decay = []",
    ]
    words = [f"--gin_param={param}" for param in params]
    passed(f"--gin_file={CONFIGS / 'text_nano.gin'}", *words, "--workdir=text", cwd=path)
    passed(f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--gin_param=Trainer.steps = 2", "--workdir=digits", cwd=path)
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_run_with_low_rank_changes_is_written_as_a_llama_that_computes_the_same(here, capsys):
    assert main(["--to=hf", "text", "--folder=written"]) == 0
    assert capsys.readouterr().out == "text, step 2: written to `written` as llama\n"
    lora = functools.partial(Lora, patterns=["*/w"], rank=1)
    settings = {"vocabulary": 257, **LLAMA, "rotary_scaling": RotaryScaling(4.0, 8)}
    task = LanguageModel(**settings, lora=lora, optimizer=sgd(0.1), rng=Rng.from_seed(1))
    begin_with(llama_weights("written", take=["net/*"]), task)
    tokens = tf.reshape(tf.range(32, dtype=tf.int32), [2, 16])
    trained = trainers.load("text").task
    assert (task.network()(tokens).numpy() == trained.network()(tokens).numpy()).all()
    assert (task.net(tokens).numpy() != trained.net(tokens).numpy()).any()


def test_resnet_is_written_as_a_state_dict_that_computes_the_same(tmp_path):
    sizes = {"image_shape": (8, 8, 1), "depth": 18, "stem": "cifar", "width": 4, "optimizer": sgd(0.1)}
    task, other = (ResNetClassifier(**sizes, rng=Rng.from_seed(seed)) for seed in (0, 1))
    WRITERS["torchvision"](task, tmp_path / "written")
    begin_with(resnet_weights(str(tmp_path / "written" / "model.safetensors")), other)
    images = tf.random.stateless_normal([2, 8, 8, 1], [0, 0])
    assert (task.net(images).numpy() == other.net(images).numpy()).all()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--to=hf", "digits"], "but the task `LinearClassifier` of this run has none"),
        (["--to=torchvision", "text"], "writes a `ResNet` or `ViT` or `ConvNeXt`, but the task `LanguageModel`"),
        (["--to=hg", "text"], "`--to` is 'hg'; give one of `hf`, `timm`, `torchvision`."),
        (["text"], "`--to` is None"),
        (["--to=hf", "text", "digits"], "give one run's folder"),
        (["--to=hf", "text", "--folder=digits"], "`digits` exists"),
        (["--to=hf", "nothing"], "nothing"),
    ],
)
def test_mistakes_are_named(words, says, here, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    one_paragraph(error)
    assert says in error
    assert not (here / "text-hf").exists()


SIZES = {"vocabulary": 5, "context": 4, "num_layers": 1, "size": 8, "num_heads": 2}
ROTARY = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False}


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({}, "gpt2"),
        (ROTARY, "llama"),
        ({**ROTARY, "window": 3}, "mistral"),
        ({**ROTARY, "qkv_bias": True, "num_kv_heads": 1}, "qwen2"),
        ({**ROTARY, "qk_norm": True, "head_size": 6}, "qwen3"),
    ],
)
def test_family_is_known_by_its_settings(config, family):
    assert family_of(TransformerConfig(**SIZES, **config)) == family


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"positions": "alibi"}, "nearest is gpt2, which has no `positions = 'alibi'`"),
        ({"num_kv_heads": 1}, "nearest is gpt2, which has no `num_kv_heads = 1`"),
        ({**ROTARY, "logit_cap": 5.0}, "nearest is llama, which has no `logit_cap = 5.0`"),
        ({**ROTARY, "base_width": 4}, "nearest is llama, which has no `base_width = 4`"),
        ({**ROTARY, "window": 3, "qk_norm": True}, "nearest is mistral, which has no `qk_norm = True`"),
    ],
)
def test_network_that_no_family_computes_is_refused(config, says):
    with pytest.raises(ConfigurationError, match=says):
        family_of(TransformerConfig(**SIZES, **config))
