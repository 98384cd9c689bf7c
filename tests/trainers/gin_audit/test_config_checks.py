"""Names, scopes, types and required parameters: mistakes that gin ignores are errors before any call."""

import pytest
from config_lab import GOOD, Lab, Rule, bound, clean, refused, says

_clean = pytest.fixture(autouse=True)(clean)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("adamv.decay = 0.1", ["`adamv.decay = 0.1` (a.gin:4)", "Did you mean `adamw`?", "import"]),
        ("Lab.source = @pionts()", ["`Lab.source = @pionts()` (a.gin:4)", "`@pionts()`", "Did you mean `points`?"]),
        ("Lab.evaluator = [1, {'x': @pionts}]", ["`@pionts`", "Did you mean `points`?"]),
        ("Lab.evaluator = @gin.REQUIRED", ["Did you mean `%gin.REQUIRED`?"]),
        ("twin.x = 1", ["`audit_test.first.twin`", "`audit_test.second.twin`", "write one of them"]),
        ("Lab.evaluator = @twin()", ["`@twin()` may be any of", "`audit_test.first.twin`"]),
        ("adamw.learning_rat = 0.1", ["`adamw.learning_rat = 0.1` (", "Did you mean `learning_rate`?", "`decay`"]),
        ("Digits.rng = 1", ["`Digits` has no parameter `rng` that gin may bind"]),
        ("listed.secret = 1", ["`listed` has no parameter `secret`"]),
        ("listed.other = 'x'", ["`listed` has no parameter `other`"]),
        ("open_to_all.secret = 'x'", ["`open_to_all` has no parameter `secret`"]),
        ("open_to_all.other = 3", ["3 (int)", "`str` is wanted"]),
        ("adamw.decay = %decai\ndecay = 0.1", ["`%decai`", "(a.gin:4)", "Did you mean `decay`?"]),
        ("adamw.decay = %nothing", ["there is no macro `%nothing`", "`nothing = ...`"]),
        ("Digits.colour = %Colour.RAD", ["`%Colour.RAD`", "Did you mean `Colour.RED`?"]),
        ("WIDTH = 3\nDigits.width = %WIDTH", ["`WIDTH = 3` (a.gin:4)", "the constant `audit_test.WIDTH`", "rename"]),
        ("Digits.width = %a\na = %b\nb = %a", ["defined by itself", "%a -> %b -> %a"]),
        ("adamw.decay = @gin.constant()", ["`@gin.constant()` has no value", "write `%name`"]),
        ("adamw.decay = @gin.macro()", ["`@gin.macro()` has no value", "write `%name`"]),
        ("lr = 0.1", ["`lr = 0.1` (a.gin:4)", "nothing uses the macro `%lr`"]),
        ("learning_rate = 0.1", ["nothing uses the macro", "Did you mean `adamw.learning_rate`?"]),
        ("a = %b\nb = 0.1", ["`a = %b` (a.gin:4)", "nothing uses the macro `%a`"]),
        ("chained.transforms = [@chained()]\nLab.evaluator = @chained()", ["`@chained()` needs its own result"]),
    ],
)  # fmt: skip
def test_unknown_and_unused_names(content: str, parts: list[str]) -> None:
    says(refused(f"# a comment\n{GOOD.lstrip()}{content}\n"), *parts)


def test_a_misspelt_scope_names_the_one_in_use() -> None:
    content = "Lab.task = @Digits\nDigits.optimizer = @disc/adamw()\ndics/adamw.learning_rate = 0.1"
    text = refused(content)
    says(text, "`dics/adamw.learning_rate = 0.1` (a.gin:3)", "scope `dics`", "Did you mean `disc`?")
    says(refused(GOOD + "g/adamw.decay = 0.1"), "scope `g` (no scope is in use)", "`@g/adamw()`")
    bound(GOOD + "train/adamw.decay = 0.1", scopes=["train"])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("adamw.decay = '0.1'", ["`adamw.decay = '0.1'` (a.gin:3)", "'0.1' (str)", "`float` is wanted"]),
        ("adamw.decay = True", ["True (bool)", "`float` is wanted"]),
        ("Digits.width = 2.0", ["2.0 (float)", "`int` is wanted"]),
        ("Digits.width = True", ["True (bool)", "`int` is wanted"]),
        ("Digits.flag = 1", ["1 (int)", "`bool` is wanted"]),
        ("Digits.width = None", ["`width` is given None", "`int` is wanted"]),
        ("sgd.momentum = 'x'\nLab.evaluator = @sgd()", ["Optional[float]"]),
        ("adamw.mask = 'kernel'", ["'kernel' (str)", "Sequence[str] | None"]),
        ("adamw.mask = ['kernel', 3]", ["['kernel', 3] (list)"]),
        ("Digits.layers = [1, 2]", ["[1, 2] (list)", "tuple[int, ...]"]),
        ("Digits.layers = (1, 'a')", ["(1, 'a') (tuple)", "tuple[int, ...]"]),
        ("Digits.names = {'a': 'b'}", ["Mapping[str, float]"]),
        ("Digits.names = {1: 1.0}", ["Mapping[str, float]"]),
        ("Digits.mode = 'fats'", ["`Literal['fast', 'slow']` is wanted, perhaps 'fast'"]),
        ("Digits.colour = 'RED'", ["'RED' (str)", "`Colour` is wanted"]),
        ("Digits.colour = %WIDTH", ["`%audit_test.WIDTH`, which is 64", "`Colour` is wanted"]),
        ("Digits.width = %w\nw = 'wide'", ["'wide' (str) by the macro at a.gin:4", "`int` is wanted"]),
        ("Digits.width = %v\nv = %w\nw = 'wide'", ["'wide' (str)", "`int` is wanted"]),
        ("Lab.source = @adamw()", ["`@adamw()`, which makes `Rule`", "Sequence[int] | None"]),
        ("Digits.width = @mirrored()", ["which makes `str`", "`int` is wanted"]),
        ("Lab.strategy = @mirrored", ["`@mirrored`", "`str` is wanted: write `@mirrored()`"]),
        ("adamw.learning_rate = @warmup", ["write `@warmup()`"]),
        ("Lab.evaluator = @chained()\nchained.transforms = [@adamw(), @sgd]", ["write `@sgd()`"]),
        ("Digits.activation = @squash()\nsquash.x = 1", ["write `@squash` without parentheses"]),
        ("Digits.activation = 'relu'", ["'relu' (str)", "Callable[[float], float]"]),
        ("Digits.kind = @sgd", ["`@sgd`", "type[Base]"]),
        ("Digits.kind = @Lab", ["`@Lab`", "type[Base]"]),
        ("Lab.evaluator = @chained()\nchained.transforms = @adamw()", ["`@adamw()`, which makes `Rule`"]),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type(content: str, parts: list[str]) -> None:
    says(refused(f"{GOOD.lstrip()}{content}\n"), *parts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (
            "Lab.task = @Digits()\nDigits.optimizer = @adamw()",
            ["`Lab.task = @Digits()` (a.gin:1)", "Callable[..., Base]", "write `@Digits` without parentheses"],
        ),
        ("Lab.task = @Digits\nDigits.optimizer = @adamw", ["`Rule` is wanted: write `@adamw()`"]),
        ("Lab.task = @adamw", ["`@adamw`, which makes `Rule` when called", "Callable[..., Base]"]),
        (
            "Digits.optimizer = @adamw()",
            ["`Lab.task` (`Callable[..., Base]`) has no value", "Bind it: `Lab.task = ...`"],
        ),
        ("Lab.task = @Digits", ["`Digits.optimizer` (`Rule`) has no value", "`Lab.task = @Digits` (a.gin:1)"]),
        (
            GOOD + "Lab.source = @g/points()\nother/points.count = 3\nLab.evaluator = @other/mirrored()",
            [
                "`g/points.count` (`int`) has no value",
                "`Lab.source = @g/points()` (a.gin:3)",
                "Bind it: `g/points.count",
            ],
        ),
    ],
)
def test_factories_and_objects_and_missing_arguments_are_distinguished(content: str, parts: list[str]) -> None:
    says(refused(content.lstrip()), *parts)


@pytest.mark.parametrize(
    "content",
    [
        "adamw.learning_rate = 1",
        "adamw.learning_rate = @warmup()",
        "adamw.learning_rate = @warmup()\nwarmup.peak = %lr\nlr = 1e-2",
        "adamw.mask = ['a', 'b']",
        "adamw.mask = ('a',)",
        "adamw.mask = None",
        "Digits.layers = ()",
        "Digits.layers = (1, 2, 3)",
        "Digits.layers = (%w, %audit_test.WIDTH)\nw = 3",
        "Digits.names = {'a': 1, 'b': 2.5}",
        "Digits.mode = 'slow'",
        "Digits.colour = %Colour.RED",
        "Digits.colour = %audit_test.Colour.RED",
        "Digits.activation = @squash\nsquash.scale = 2.0",
        "Digits.activation = None",
        "Digits.activation = @warmup()",
        "Digits.anything = @sgd",
        "Digits.anything = {'a': [@sgd(), (@points,)]}",
        "Digits.strange = 3",
        "Digits.kind = @Digits",
        "Lab.strategy = @mirrored()\nmirrored.replicas = 4",
        "Lab.source = @points()\npoints.count = 3",
        "Lab.source = [1, 2]",
        "Lab.evaluator = @chained()\nchained.transforms = [@sgd(), @g/sgd()]\ng/sgd.momentum = 0.9\nsgd.momentum = 0.8",
        "Lab.evaluator = @chained()\nchained.transforms = %both\nboth = [@sgd(), %other]\nother = @adamw()",
        "Lab.evaluator = {1: @a/mirrored(), 2: (@b/mirrored(),)}\na/mirrored:\n  replicas = 2\nb/mirrored.replicas = 3",
        "Lab.evaluator = @shared/gin.singleton()\nshared/gin.singleton.constructor = @mirrored\nmirrored.replicas = 3",
        "audit_test.adamw.decay = 0.5",
        "Lab.evaluator = [@listed(), @open_to_all()]\nlisted.colour = 'x'\nlisted.size = 2\nopen_to_all.other = 'x'",
        "Lab.evaluator = @follower()\nsquash.scale = 3.0",
    ],
)
def test_right_configurations_pass_every_check(content: str) -> None:
    configuration = bound(f"{GOOD.lstrip()}{content}\n")
    Lab()
    configuration.check_consumed()


def test_values_reach_what_is_called() -> None:
    bound(
        GOOD
        + "Digits.width = %w\nw = 5\nadamw.learning_rate = 0.5\n"
        + "Digits.anything = [@sgd(), @o/sgd()]\no/sgd.learning_rate = 2"
    )
    task = Lab().task
    assert (task.width, task.optimizer, task.anything) == (5, Rule("adamw 0.5"), [Rule("sgd 0.1"), Rule("sgd 2")])


def test_binding_anew_forgets_what_was_bound() -> None:
    bound(GOOD + "Digits.width = 5")
    bound(GOOD)
    assert Lab().task.width == 32


def test_a_factory_may_get_its_arguments_from_its_caller() -> None:
    bound(GOOD + "Lab.evaluator = @points")
    bound("Digits.optimizer = @adamw()", required=[])  # of no root


def test_required_stands_for_a_later_value() -> None:
    text = refused(GOOD + "Lab.seed = %gin.REQUIRED")
    says(text, "`Lab.seed = %gin.REQUIRED` (a.gin:3)", "none gives it", "`Lab.seed = ...`")
    says(refused(GOOD + "seed = %gin.REQUIRED\nLab.seed = %seed"), "`seed = %gin.REQUIRED` (a.gin:3)")
    says(refused(GOOD + "Lab.evaluator = [%gin.REQUIRED]"), "not a part of one")
    bound(GOOD + "seed = %gin.REQUIRED\nLab.seed = %seed", "seed = 3")


def test_name_of_a_users_configurable_wins_over_one_that_ships() -> None:
    content = "Lab.task = @Digits\nDigits.optimizer = @clash()\nclash.rate = 0.5"
    configuration = bound(content)
    assert configuration.preferred == ["`clash` is `audit_test.clash`, not the one that ships"]
    assert Lab().task.optimizer.name == "own 0.5"
    configuration.check_consumed()
    named = bound(content.replace("clash", "clashing.clash"))
    assert named.preferred == []
    assert Lab().task.optimizer.name == "shipped 0.5"
    named.check_consumed()
