"""`--mode=dry_run`: the memory of a device, the operations of a step, and the traffic between devices."""

import re

import pytest

from tests.commands import CONFIGS, fork_server, passed, refused
from tests.test_configs import write_idx
from tests.trainers.command_lab import gin
from tools.invariance.stand_ins import write_cifar
from tools.invariance.subjects import CHANGES, config_names

SAID = "--gin_param=DryRun.peak = 1e12"  # which skips the measurement
MLP = f"--gin_file={CONFIGS / 'digits_mlp.gin'}"
MEGATRON = f"--gin_file={CONFIGS / 'runtime' / 'mesh_transformer.gin'}"
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def rows(text):
    """Returns the cells of the tables' rows by the first ones, numbers of bytes as numbers."""
    found = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    numbers = [[_number(cell) for cell in row] for row in found]
    return {
        tuple(cell for cell, n in zip(row, counts, strict=True) if n is None): [n for n in counts if n is not None]
        for row, counts in zip(found, numbers, strict=True)
    }


def _number(cell):
    match = re.fullmatch(rf"([\d,.e+]+)(?: ({'|'.join(UNITS)}))?", cell)
    return None if match is None else float(match[1].replace(",", "")) * UNITS[match[2] or "bytes"]


def dry(tmp_path, *flags, peak=True):
    """Returns the output of a dry run, and its words in one line; a given peak speed skips measuring one."""
    done = passed(*flags, *[SAID] * peak, "--mode=dry_run", cwd=tmp_path)
    return done.stdout, " ".join(done.stdout.split())


def test_table_says_what_a_device_holds_and_how_long_a_step_takes_at_a_given_peak(tmp_path):
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}"]
    text, words = dry(tmp_path, *flags, "--gin_param=DryRun.peak = 1e6", peak=False)
    found = rows(text)
    parameters = 4 * (64 * 10 + 10)
    assert found["parameters",] == pytest.approx([parameters] * 3, rel=1e-3)
    assert found["gradients",][1] == pytest.approx(parameters, rel=0.02)
    sums = [
        sum(found[name,][i] for name in ("parameters", "slots", "batches", "gradients", "activations"))
        for i in (0, 1, 2)
    ]
    assert found["together",] == pytest.approx(sums, rel=1e-2)
    assert not (tmp_path / "runs").exists()
    milliseconds = 64 * 2 * 2 * 64 * 10 / 1e3  # forward, and the gradient of the weights
    assert f"A step takes {milliseconds:.3g} ms at least, on 1 devices used to 100 % of `DryRun.peak`" in words
    negative = "--gin_param=DryRun.peak = -1"
    refused(*flags, negative, "--mode=dry_run", cwd=tmp_path, exit_code=2, says=["`DryRun.peak` is -1"])


def test_operations_of_an_example_are_counted_by_module(tmp_path):
    _, words = dry(tmp_path, MLP)
    first, second = 2 * 64 * 128, 2 * 128 * 10
    for row, forward, both in (
        ("net/layers/0", first, 2 * first),
        ("net/layers/1", second, 3 * second),
        ("together", first + second, 2 * first + 3 * second),
    ):
        assert f"│ {row} │ {forward / 1000:.4g} thousand │ {both / 1000:.4g} thousand │" in words
    assert "It fits: a process of training takes about " in words


@pytest.mark.parametrize(
    "binding", ["MlpClassifier.sizes = [64, 10000000, 100000, 10]", "Trainer.global_batch_size = 1_000_000_000"]
)
def test_model_or_batch_that_does_not_fit(binding, tmp_path):
    assert "It doesn't fit: a process of training takes about " in dry(tmp_path, MLP, f"--gin_param={binding}")[1]


def test_gradients_cross_in_the_type_that_a_run_would_reduce_them_in(tmp_path):
    files = [f"--gin_file={CONFIGS / name}" for name in ("digits_linear.gin", "runtime/mirrored.gin")]
    half = "--gin_param=Trainer.reduce_gradients_in = 'bfloat16'"
    text, _ = dry(tmp_path, *files, half, "--gin_param=mirrored.replicas = 2")
    parameters = 64 * 10 + 10
    assert rows(text)["net", "gradients"] == [1, pytest.approx(2 * parameters, rel=0.02)]


def test_servers_are_refused_before_they_are_waited_for(tmp_path):
    files = [f"--gin_file={CONFIGS / name}" for name in ("digits_linear.gin", "runtime/parameter_server.gin")]
    refused(*files, "--mode=dry_run", cwd=tmp_path, exit_code=2, says=["`--mode=dry_run`", "not parameter servers"])


def test_data_need_not_be_there(tmp_path):
    absent = ["Experiment.train_source = @mnist()", "mnist.directory = 'absent'", "Experiment.eval_source = None"]
    net = ["ConvNetClassifier.image_shape = [28, 28, 1]", "ConvNetClassifier.channels = [2]"]
    flags = [f"--gin_param={text}" for text in (*absent, *net)]
    text, _ = dry(tmp_path, f"--gin_file={CONFIGS / 'digits_convnet.gin'}", *flags)
    assert "the data isn't there, so batches are as the task reads them" in text
    says = ["A dry run doesn't need the data, but `LinearClassifier` doesn't declare what shape `image` has"]
    refused(f"--gin_file={CONFIGS / 'mnist_linear.gin'}", "--mode=dry_run", cwd=tmp_path, exit_code=4, says=says)


def test_mesh_that_does_not_fit_is_refused(tmp_path):
    file = f"--gin_file={CONFIGS / 'text_tiny.gin'}"
    wrong = {
        "mesh.model = 3": "`mesh.model` is 3, which doesn't divide",
        "mesh.batch = 5": "`mesh.batch` = 5",
        "mesh.output_layouts = [('*/norms', '-,model,-')]": "which matches no module that can be called",
        "Experiment.one_device = ['net']": "`Experiment.one_device` names `net`",
        "Experiment.seed = -1": "`Experiment.seed` is -1",
    }
    for text, says in wrong.items():
        refused(file, MEGATRON, f"--gin_param={text}", "--mode=dry_run", cwd=tmp_path, exit_code=2, says=[says])


COMMAND = """
import pathlib, re, sys
from trainers.main import main
code = main(sys.argv[1:])
print("kilobytes", re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


@pytest.mark.long
def test_seventy_billion_parameters_on_128_devices_take_little_memory_to_look_at(tmp_path):
    (tmp_path / "measured.py").write_text(COMMAND)
    sizes = ["--gin_param=mesh.batch = 16", "--gin_param=mesh.model = 8", "--gin_param=table_layout = 'model,-'"]
    flags = [f"--gin_file={CONFIGS / 'text_70b.gin'}", MEGATRON, *sizes, "--mode=dry_run"]
    done = fork_server().run(*flags, cwd=tmp_path, timeout=300, command="measured")
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    matrices = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 128256 * 8192
    scales = (2 * 80 + 1) * 8192
    own, table = 4 * (matrices / 8 + scales), 4 * 128256 * 8192 / 8
    assert found["parameters",][0] == pytest.approx(own, rel=1e-3)
    assert found["slots",][0] == pytest.approx(2 * own, rel=1e-3)
    # The peak is in the backward pass of a recomputed block. The table's gradient from the logits waits there for the
    # one from the lookup.
    assert found["gradients",][0] == pytest.approx(own + table, rel=1e-3)
    assert f"a checkpoint takes {12 * (matrices + scales) / 2**30:.4g} GiB" in done.stdout.replace("\n", " ")
    # Shoeybi et al., 2019: two sums of activations a block forward and two backward, and one in its recomputation. The
    # table has one at the lookup, and one back from the logits.
    microbatches, activations = 32, 4 * 4096 * 8192  # of one text a device
    forward, backward = (2 * 80 + 1) * microbatches, (3 * 80 + 1) * microbatches
    assert found["model", "all-reduce", "forward"][1] == pytest.approx(forward * activations, rel=1e-3)
    assert found["model", "all-reduce", "backward"][1] == pytest.approx(backward * activations, rel=1e-3)
    # Cross-entropy sums three numbers a token; one sum is the norm of gradients.
    assert found["model", "all-reduce", "forward"][0] == forward + 3 * microbatches + 1
    assert found["batch", "all-reduce", "backward"][1] == pytest.approx(own, rel=1e-3)
    assert "all-gather" not in done.stdout
    products = 2 * 4096 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    scores = 2 * 4096 * 4096 * 8192  # all of them: on a mesh, attention has no tiles
    table = 2 * 4096 * 128256 * 8192
    text = " ".join(done.stdout.split())
    assert f"│ together │ {(80 * (products + 2 * scores) + table) / 1e12:,.4g} trillion " in text
    last = 2 * 4096 * 28672 * 8192  # of a block: its gradient doesn't need it recomputed, unlike the others
    # Two products of scores forward, two in the recomputed block, and four backward.
    assert f"│ {(80 * (4 * products - last + 8 * scores) + 3 * table) / 1e12:,.4g} trillion │" in text
    assert "│ net/blocks/*/attention/query │" in text
    assert int(done.stdout.rpartition("kilobytes")[2]) < 1_400_000


@pytest.mark.long
def test_heads_that_a_mesh_of_more_devices_does_not_divide_are_said_to_be_gathered(tmp_path):
    """`text_small` has 12 heads, divided by 16."""
    sizes = ["mesh.batch = 8", "mesh.model = 16", "LanguageModel.num_layers = 2", "Trainer.microbatches = 4"]
    sizes = [f"--gin_param={text}" for text in (*sizes, "Trainer.global_batch_size = 32")]
    text, words = dry(tmp_path, f"--gin_file={CONFIGS / 'text_small.gin'}", MEGATRON, *sizes, peak=False)
    assert "How long a step takes isn't known of devices that aren't here" in words
    assert "Reshape of [8, 1024, 768] to [8, 1024, 12, 64], cut along `model` in dimension 2" in words
    gathered = 3 * 2 * 4  # queries, keys and values, in each block of each microbatch
    own = 4 * 1024 * 768 // 16
    assert rows(text)["model", "all-gather", "forward"] == [gathered, gathered * own]


# Other tests include a dry run of these, or of one that differs by placements or sizes only.
SEEN = {
    "digits_linear",
    "digits_mlp",
    "mnist_mlp",
    "digits_cyclegan",
    *(x for x in config_names() if x.startswith("text_")),
}
SEEN |= {f"digits_gan_{how}" for how in ("by_batch_size", "generator_on_one_device", "sampling_on_every_replica")}

BLOCK = ("diffusion_mlp.blocks = 1",)
FEWER = {  # modules of a kind
    **CHANGES,
    "cyclegan": (*CHANGES["cyclegan"], "CycleGan.discriminator_channels = [4]"),
    "digits_ddpm": ("Experiment.eval_source = None",),  # an evaluation has its network eight times
    **dict.fromkeys(("digits_edm", "digits_flow", "digits_guided"), BLOCK),
    "digits_pix2pix": ("Pix2Pix.generator_channels = [4, 8]", "Pix2Pix.discriminator_channels = [4]"),
    "digits_simclr": ("SimClr.channels = [8]",),
    "digits_stylegan2": (*CHANGES["digits_stylegan2"], "StyleGan2.mapping_layers = 1"),
    "digits_vit": ("ViTClassifier.num_layers = 1",),
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*config_names()} - SEEN))
def test_dry_run_of_each_configuration(name, tmp_path):
    """`cyclegan` alone reads files that don't exist here: its task declares their content."""
    flags = [f"--gin_param={text}" for text in FEWER.get(name, ())]
    if name.startswith("mnist_"):
        write_idx(tmp_path)
        flags = [f"--gin_param=mnist.directory = '{tmp_path}'"]
    elif name == "cifar10_speed":
        write_cifar(tmp_path)
        flags.append(f"--gin_param=cifar10.directory = '{tmp_path}'")
    elif name == "digits_resnet":
        (tmp_path / "few.py").write_text("from models.classifiers import resnet\n\nresnet.BLOCKS[18] = (1, 1)\n")
        flags.append(gin(tmp_path, "import few\n"))
    text, _ = dry(tmp_path, f"--gin_file={CONFIGS / name}.gin", *flags)
    assert "parameters" in text
    assert ("the data isn't there" in text) == (name == "cyclegan")
