"""Structure of the code: downward imports, short files; long because it is a table of rules."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.commands import CHECKOUT

# From bottom to top, one line per level. A package imports from lower levels and from itself; `package.*` stands for
# the modules and packages in it that have no separate line.
FLOORS = [
    ["core"],
    ["core.errors", "core.machine", "core.signals", "core.tensorflow_private"],
    ["core.graphs", "core.tracing"],
    ["core.arguments", "core.casts", "core.choice", "core.disk", "core.rows"],
    ["core.storage"],
    ["core.precision"],
    ["core.random"],
    ["core.module", "core.initializers", "core.checkpoint"],
    ["core.data", "core.losses", "core.optimizers", "core.telemetry"],
    ["core.metrics"],
    ["core.task"],
    ["core.layers", "core.weights", "core.cluster"],
    ["core.workers"],
    ["core.distribution"],
    ["core.engine"],
    ["core.parallel"],
    ["core.estimate", "core.measure"],
    ["core.testing"],
    ["models.classifiers"],
    ["models.*"],
    ["models"],
    ["trainers"],
    ["trainers.gin_audit", "trainers.workdir"],
    ["trainers.export", "trainers.options"],
    ["trainers.errors"],
    ["trainers.experiment", "trainers.process"],
    ["trainers.evaluation", "trainers.runs", "trainers.tokenize"],
    ["trainers.report", "trainers.track"],
    ["trainers.hooks"],
    ["trainers.configurables", "trainers.settings"],
    ["trainers.loop"],
    ["trainers.trainer"],
    ["trainers.dry_run", "trainers.lifecycle", "trainers.replay", "trainers.storage"],
    ["trainers.session"],
    ["trainers.main", "trainers.performance", "trainers.python_api"],
    ["trainers.launch", "trainers.modes"],  # `main` imports the requested mode by name
    ["trainers.average", "trainers.curvature", "trainers.sweep", "trainers.verify_machine", "trainers.weights"],
]
ABOVE_MODELS = {
    "core.checkpoint",
    "core.telemetry",
    "core.cluster",
    "core.distribution",
    "core.engine",
    "core.parallel",
    "core.estimate",
    "core.measure",
    "core.testing",
}
# Packages that a package may not import though they are lower.
BLIND = {
    # A model defines what a phase computes, not where and how often it runs.
    "models": ABOVE_MODELS,
    # The linter trains nothing, and answers before TensorFlow is imported.
    "trainers.gin_audit": {name for floor in FLOORS for name in floor if name.startswith(("core", "models"))}
    - {"core", "core.errors"},
}
# A test's name states its subject; these words would refer to something outside the name.
HEADLESS = {
    "what",
    "who",
    "whoever",
    "whatever",
    "of",
    "it",
    "its",
    "they",
    "them",
    "so",
    "that",
    "these",
    "this",
    "those",
}
# A path of the checkout in a string; one that ends in `/` or a letter may be a prefix of several files' paths.
PATH = re.compile(r"(?<![\w./{-])(?:core|models|trainers|docs|benchmarks|tools|examples|deploy)/[\w/]+(?:\.\w+)?")
LONGEST = 400  # lines, unless the first sentence of a file gives a reason with `long`
PACKAGES = ("core", "models", "trainers")
# Total lines of `PACKAGES`: lower it when code goes; an increase needs its reason in the same commit.
MOST_LINES = 68_700


def sources() -> dict[str, str]:
    """Returns the text of each module by name; a package's name ends with `.__init__`."""
    files = [path for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py")]
    return {".".join(path.relative_to(CHECKOUT).with_suffix("").parts): path.read_text() for path in files}


def imports(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Returns the project's modules that each module imports, also inside functions and for type checkers."""
    modules = {name.removesuffix(".__init__"): text for name, text in texts.items()}

    def imported(text: str) -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def module_of(name: str) -> str:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    found = {name: {module_of(target) for target in imported(text)} for name, text in modules.items()}
    return {name: targets - {"", name} for name, targets in found.items()}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def floor_of(room: str) -> int | None:
    for name in (room, f"{room.partition('.')[0]}.*"):
        for i, floor in enumerate(FLOORS):
            if name in floor:
                return i
    return None


def upward_arrows(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Describes each import that points upwards, sideways or to a forbidden package."""
    complaints = []
    for module, targets in graph.items():
        room = room_of(module)
        height = floor_of(room)
        if height is None:
            complaints.append(f"{module} is in no room that `FLOORS` names")
            continue
        for target in targets:
            other = room_of(target)
            other_height = floor_of(other)
            blind = {*BLIND.get(room, ()), *BLIND.get(room.partition(".")[0], ())}
            same_floor = other_height == height and "*" in "".join(FLOORS[height])
            if other in blind:
                complaints.append(f"{module} imports {target}, which `{room}` may not know")
            elif other != room and not same_floor and (other_height is None or other_height >= height):
                complaints.append(f"{module} imports {target}, an arrow upwards")
    return sorted(complaints)


def circles(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns each shortest import circle once, as `a -> b -> a`."""
    found = {}
    for start in sorted(graph):
        paths = [[start]]
        seen = {start}
        while paths:
            path = paths.pop(0)
            targets = sorted(graph.get(path[-1], ()))
            if start in targets:
                found.setdefault(frozenset(path), " -> ".join([*path, start]))
                break
            paths += [[*path, target] for target in targets if target not in seen]
            seen.update(targets)
    return list(found.values())


def between_rooms(graph: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Returns the packages that each package imports; modules in a root folder belong to none."""
    rooms: dict[str, set[str]] = {room_of(module): set() for module in graph if module.count(".") > 1}
    for module, targets in graph.items():
        if room_of(module) in rooms:
            rooms[room_of(module)].update({room_of(target) for target in targets} & rooms.keys())
    return {room: targets - {room} for room, targets in rooms.items()}


def too_long(texts: Mapping[str, str]) -> list[str]:
    """Names the files of more than `LONGEST` lines whose first sentence gives no reason with `long`."""
    complaints = []
    for name, text in sorted(texts.items()):
        lines = len(text.splitlines())
        if lines <= LONGEST:
            continue
        first = (ast.get_docstring(ast.parse(text)) or "").partition(".")[0]
        if "long" not in first.split():
            complaints.append(f"{name} has {lines} lines: split it, or say in its first sentence what it is long for")
    return complaints


def lost_paths(texts: Mapping[str, str]) -> list[str]:
    """Names the strings in code that look like paths of this checkout but begin no file's path."""
    complaints = []
    for name, text in sorted(texts.items()):
        strings = [n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and type(n.value) is str]
        paths = {match for string in strings for match in PATH.findall(string)}
        complaints += [f"{name} names {path}, which isn't there" for path in sorted(paths) if not found(path)]
    return complaints


def found(path: str) -> bool:
    return any(CHECKOUT.glob(f"{path.rstrip('/')}*"))


def headless_tests(texts: Mapping[str, str]) -> list[str]:
    """Names the tests whose names begin with a word that doesn't state their subject."""
    return [
        f"{name}::{node.name}"
        for name, text in sorted(texts.items())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name.split("_")[1] in HEADLESS
    ]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Returns the imports of this checkout."""
    return imports(sources())


def test_imports_point_downwards(graph: dict[str, set[str]]) -> None:
    assert upward_arrows(graph) == []


def test_root_of_trainers_holds_nine_files() -> None:
    names = sorted(path.stem for path in (CHECKOUT / "trainers").glob("*.py"))
    assert len(names) == 9, names


def test_no_circle_between_modules(graph: dict[str, set[str]]) -> None:
    assert circles(graph) == []


def test_no_circle_between_rooms(graph: dict[str, set[str]]) -> None:
    assert circles(between_rooms(graph)) == []


def test_files_are_short() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    files = [CHECKOUT / name for name in tracked.stdout.splitlines() if (CHECKOUT / name).exists()]
    assert len(files) > 200
    assert too_long({str(path.relative_to(CHECKOUT)): path.read_text() for path in files}) == []


def test_code_grows_only_with_a_reason() -> None:
    lines = sum(len(text.splitlines()) for text in sources().values())
    assert MOST_LINES - 1_000 < lines <= MOST_LINES, f"core, models and trainers have {lines:,} lines: see `MOST_LINES`"


def test_paths_in_strings_of_code_are_there() -> None:
    assert lost_paths(sources()) == []


def test_names_of_tests_say_what_they_are_about() -> None:
    files = (CHECKOUT / "tests").rglob("test_*.py")
    assert headless_tests({str(path.relative_to(CHECKOUT)): path.read_text() for path in files}) == []


def test_no_two_files_of_tests_have_one_name_where_no_package_tells_them_apart() -> None:
    tests = (CHECKOUT / "tests").rglob("test_*.py")
    names = Counter(path.name for path in tests if not (path.parent / "__init__.py").exists())
    assert [name for name, times in names.items() if times > 1] == []


# --- The tests of the tests: a planted fault is found and named ------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        (
            "core.losses.margin",
            "import core.engine.step",
            "core.losses.margin imports core.engine.step, an arrow upwards",
        ),
        ("core.data.source", "from core import task", "core.data.source imports core.task, an arrow upwards"),
        (
            "core.random",
            "def f():\n    from models import simclr",
            "core.random imports models.simclr, an arrow upwards",
        ),
        (
            "models.simclr",
            "if TYPE_CHECKING:\n    from trainers.trainer import Trainer",
            "models.simclr imports trainers.trainer, an arrow upwards",
        ),
        (
            "core.losses.margin",
            "from core.data import Source",
            "core.losses.margin imports core.data, an arrow upwards",
        ),
        (
            "models.simclr",
            "import core.engine.step",
            "models.simclr imports core.engine.step, which `models.simclr` may not know",
        ),
        (
            "trainers.gin_audit.parse",
            "from core.arguments import listed",
            "trainers.gin_audit.parse imports core.arguments, which `trainers.gin_audit` may not know",
        ),
        (
            "trainers.settings",
            "from trainers.trainer import Trainer",
            "trainers.settings imports trainers.trainer, an arrow upwards",
        ),
        (
            "trainers.errors.pages",
            "def f():\n    from trainers.process import flags",
            "trainers.errors.pages imports trainers.process.flags, an arrow upwards",
        ),
        (
            "trainers.process.flags",
            "import trainers.experiment",
            "trainers.process.flags imports trainers.experiment, an arrow upwards",
        ),
        ("trainers.attic", "", "trainers.attic is in no room that `FLOORS` names"),
        ("core.attic.trunk", "", "core.attic.trunk is in no room that `FLOORS` names"),
    ],
)
def test_an_arrow_upwards_is_named(module: str, text: str, says: str) -> None:
    house = dict.fromkeys(("core.engine.step", "core.data.__init__", "core.task.__init__", "core.arguments"), "")
    house |= {"models.simclr": "", "core.losses.margin": "import core.arguments"}
    house |= dict.fromkeys(
        ("trainers.trainer", "trainers.errors.pages", "trainers.process.flags", "trainers.experiment"), ""
    )
    assert upward_arrows(imports(house)) == []
    assert upward_arrows(imports({**house, module: text})) == [says]


def test_a_circle_is_named() -> None:
    house = {
        "trainers.a.__init__": "",
        "trainers.a.x": "from trainers.b import y",
        "trainers.b.y": "def f():\n    from trainers.c import z",
        "trainers.b.w": "import trainers.a.v",
        "trainers.c.z": "import trainers.a",
        "trainers.a.v": "",
    }
    graph = imports(house)
    assert circles(graph) == []
    assert circles(between_rooms(graph)) == [
        "trainers.a -> trainers.b -> trainers.a",
        "trainers.c -> trainers.a -> trainers.b -> trainers.c",
    ]
    closed = imports({**house, "trainers.a.v": "from trainers.b.w import anything"})
    assert circles(closed) == ["trainers.a.v -> trainers.b.w -> trainers.a.v"]
    # A package's modules don't import through the package.
    package = {
        "core.data.__init__": "from core.data.source import Source",
        "core.data.source": "from core.data import Source",
    }
    assert circles(imports(package)) == ["core.data -> core.data.source -> core.data"]


def test_a_long_file_is_named() -> None:
    body = "\nx = 1" * LONGEST
    assert too_long({"short.py": body[1:], "reason.py": '"""A table, long for its rows."""' + body}) == []
    assert too_long({"a.py": '"""A table. It is long."""' + body}) == [
        "a.py has 401 lines: split it, or say in its first sentence what it is long for"
    ]


def test_a_path_that_is_not_there_is_named() -> None:
    text = 'PLACES = {"core/data": 1, "core/attic/trunk": 2}\nPAGE = "see docs/attic.md#x"'
    assert lost_paths({"core.a": text}) == [
        "core.a names core/attic/trunk, which isn't there",
        "core.a names docs/attic.md, which isn't there",
    ]


def test_a_headless_name_is_found() -> None:
    text = "class TestPool:\n    def test_it_fills(self): ...\n\n\ndef test_italic_words(): ...\n"
    assert headless_tests({"test_pool.py": text}) == ["test_pool.py::test_it_fills"]
