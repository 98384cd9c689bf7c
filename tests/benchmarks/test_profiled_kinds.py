"""`benchmarks.profile`: divides a hand-made profile, and one of real steps."""

import gin
import pytest
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from benchmarks.pages import rows_in
from benchmarks.profile import __main__ as command
from benchmarks.profile.kinds import kind_of
from benchmarks.profile.limits import Limits
from benchmarks.profile.trace import CALL, CHUNK, INPUT, STARTING, WAIT, shares
from benchmarks.profile.works import WORKS
from tests.commands import CHECKOUT

MUL, PRODUCT = "while/mul:Mul", "while/MatMul:_MklMatMul"


@pytest.fixture(autouse=True)
def no_bindings_are_left():
    yield
    gin.clear_config()


def space(**threads):
    """Makes a profile of (name, begin, end) by thread."""
    made = XSpace()
    plane = made.planes.add(name="/host:CPU")
    for thread, events in threads.items():
        line = plane.lines.add(name=thread)
        for name, begin, end in events:
            number = len(plane.event_metadata) + 1
            plane.event_metadata[number].name = name
            line.events.add(metadata_id=number, offset_ps=begin, duration_ps=end - begin)
    return made


def test_moments_of_a_chunk_are_shared_between_the_threads_that_work():
    found = shares(
        space(
            python=[(WAIT, 0, 10), (CHUNK, 10, 110), ("EagerLocalExecute: chunk", 11, 109)],
            first=[("ExecutorState::Process", 20, 100), (MUL, 20, 50), (PRODUCT, 60, 80)],
            second=[("ExecutorState::Process", 30, 50), (PRODUCT, 40, 50)],
            tf_data_private_threadpool=[(PRODUCT, 0, 110)],
        )
    )
    assert found.picoseconds == {
        INPUT: 10,
        CALL: 10 + 10,  # up to the first operation, and after the last
        "element-wise": 20 + 5,
        "matrix products": 20 + 5,
        STARTING: 10 + 20,  # time without other work
    }
    assert found.counts == {"element-wise": 1, "matrix products": 2}


def test_innermost_of_nested_events_counts():
    program = [
        ("ThunkExecutor::Execute", 0, 100),
        ("while.2", 0, 90),
        ("MatMul.3", 10, 30),
        ("multiply_fusion", 40, 50),
    ]
    found = shares(space(python=[(CHUNK, 0, 100)], xla=program))
    assert found.picoseconds == {"matrix products": 20, "element-wise": 10, STARTING: 70, CALL: 0}


@pytest.mark.parametrize(
    ("kind", "name", "type"),
    [
        ("convolutions", "conv", "_MklNativeFusedConv2D"),
        ("convolutions, gradient of the kernel", "while/cond/then/conv", "Conv2DBackpropFilter"),
        ("figures and checks", "while/L2Loss_1", "L2Loss"),
        ("update", "while/cond/then/_1/ResourceApplyAdam", "ResourceApplyAdam"),
        ("element-wise", "while/Maximum", "Maximum"),
        ("reductions", "while/Max", "Max"),
        ("pooling", "gradient_tape/MaxPool", "MaxPoolGrad"),
        ("matrix products", "dot.7", ""),
        ("element-wise", "convert_fusion", ""),
    ],
)
def test_kind_of_an_operation(kind, name, type):
    assert kind_of(name, type) == kind


@pytest.mark.long
def test_rows_of_a_real_step_add_up_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SECONDS", 0.0)
    monkeypatch.setattr(command, "PROFILED", 0.0)
    _, bindings = WORKS["mlp"]
    gin.parse_config([*bindings, "MlpClassifier.sizes = [784, 512, 10]", "Trainer.chunk_steps = 2"])
    rows, said = command.profiled(tmp_path, Limits(operations=1e11, bytes=1e10, call=1e-5))
    found = {row[0]: dict(zip(command.HEAD, row, strict=True)) for row in rows}
    assert float(found["matrix products"]["operations"]) >= 3
    assert "of the peak" in found["matrix products"]["GFLOP/s"]
    step = float(said.split()[3])
    assert sum(float(row["ms"]) for row in found.values()) == pytest.approx(step, rel=0.01)


def test_table_of_a_work_is_not_written_from_other_settings():
    for other in ("--gin_file=mine.gin", '--gin_param=Trainer.compile = "xla"'):
        with pytest.raises(SystemExit):
            command.main(["--write", other])


def test_page_has_a_table_for_each_work_that_it_names():
    page = (CHECKOUT / "benchmarks" / "notes" / "performance.md").read_text()
    for work in ("conv", "transformer", "mlp", "softmax", "dcgan", "cyclegan"):
        rows = rows_in(page, f"profile: {work}")
        assert len(rows) > 5, work
