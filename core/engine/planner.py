"""Plans the phases of a step in order, with one trace of each before the first step."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.engine.inspect_phase import Access, Specs, describe_loss, describe_outputs
from core.engine.layout import shape_of
from core.engine.plan import Plan, clips
from core.engine.side_effects import paths_by_id
from core.errors import ConfigurationError
from core.precision import FLOAT32, Precision
from core.task import Compute, Phase, Update


class Planner:
    """Plans the phases in order, and tracks which phase makes which value."""

    def __init__(
        self,
        batch: Specs,
        variables: Mapping[str, tf.Variable],
        *,
        replicas: int,
        one_device_ids: Collection[int] = (),
        readable: Mapping[str, tf.Variable] = {},
        precision: Precision = FLOAT32,
        noise_scale: bool = False,
    ):
        """Starts from `batch`, the specs of the source's features.

        `variables` gives the paths of variables for errors. Phases may read only these variables and the `readable`
        ones.
        """
        self.paths = paths_by_id(variables)
        self.held = {**paths_by_id(readable), **self.paths}
        self.microbatches, rows = shape_of(batch)
        self.rows = rows * replicas  # of one global microbatch
        self.replicas, self.one_device_ids = replicas, one_device_ids
        self.known = {key: tf.TensorSpec(spec.shape[2:], spec.dtype) for key, spec in batch.items()}
        self.precision, self.noise_scale = precision, noise_scale
        self.makers: dict[str, Phase] = {}
        self.plans: dict[str, Plan] = {}

    def add(self, phase: Phase) -> Plan:
        """Traces and checks the next phase, and returns its plan."""
        # A phase may read values that exist in every step that it runs: those of phases whose `every` divides its own.
        elsewhere = {
            key: f"phase `{maker.name}` makes it only every {maker.every} steps (give both the same `every`)"
            for key, maker in self.makers.items()
            if phase.every % maker.every
        }
        history = isinstance(phase, Compute) and phase.state is not None
        replicated = not history and (
            self.replicas == 1 or phase.placement.on_every_replica(self.rows * self.microbatches)
        )
        replicas = self.replicas if replicated else 1
        rows = self.rows * self.microbatches // replicas
        microbatches = rows if clips(phase) else self._microbatches_of(phase)
        rows //= microbatches
        specs = {key: tf.TensorSpec([rows, *x.shape], x.dtype) for key, x in self.known.items() if key not in elsewhere}
        made_in = {key: self.plans[maker.name].narrowing.dtype for key, maker in self.makers.items()}
        given = self.precision.given
        if history and isinstance(given, Mapping) and given.get(phase.name, "float32") != "float32":
            raise ConfigurationError(
                f"`Trainer.precision` names phase `{phase.name}`, which keeps history (`state`): state is float32, and "
                "the phase computes in it. Leave the name out."
            )
        precision = FLOAT32 if history else self.precision  # history is state, which stays in float32
        narrowing = precision.narrowing(phase.name, specs, made_in)
        place = {"replicated": replicated, "replicas": replicas, "microbatches": microbatches, "rows": rows}
        plan = self._plan(phase, specs, elsewhere, **place, narrowing=narrowing)
        plan.check()
        self._check_curvature(plan, specs)
        self._check_one_device_reads(plan)
        for key, spec in plan.outputs.items():
            if key in self.known:
                origin = f"phase `{self.makers[key].name}`" if key in self.makers else "the source"
                raise ConfigurationError(
                    f"phase `{phase.name}` makes `{key}`, which comes from {origin} already: give it another name."
                )
            self.makers[key] = phase
            self.known[key] = tf.TensorSpec(spec.shape[1:], spec.dtype)
        self.plans[phase.name] = plan
        return plan

    def _plan(self, phase: Phase, specs: Specs, elsewhere: Mapping[str, str], **place: Any) -> Plan:
        name, mixes = phase.name, {"mixes_rows": phase.mixes_rows, "replicas": place["replicas"], "held": self.held}
        mixes["narrowing"] = place["narrowing"]
        if isinstance(phase, Compute):
            history = phase.state is not None
            outputs, access = describe_outputs(phase.fn, specs, name, elsewhere, history=history, **mixes)
            return Plan(phase, reads=_read(access, specs), outputs=outputs, access=access, **place)
        loss = describe_loss(phase.loss, specs, name, elsewhere, **mixes)
        through = self._through(phase, loss.access, replicated=place["replicated"])
        computes_in = {place["narrowing"].dtype, *([through.narrowing.dtype] if through else [])}
        loss = dataclasses.replace(loss, scaled=tf.float16 in computes_in, noise_scale=self.noise_scale)
        if through is None:
            self._check_reached(phase, loss.access)
        reads = _read(loss.access, specs)
        return Plan(phase, reads=reads, outputs=loss.outputs, access=loss.access, loss=loss, through=through, **place)

    def _microbatches_of(self, phase: Phase) -> int:
        if isinstance(phase, Compute) and phase.state is not None:
            return 1  # history sees the whole batch at once
        own = phase.microbatches or self.microbatches
        if self.microbatches % own:
            raise ConfigurationError(
                f"`microbatches` of phase `{phase.name}` is {own}, which doesn't divide `Trainer.microbatches` = "
                f"{self.microbatches}: a phase joins whole microbatches of the trainer's."
            )
        return own

    def _through(self, phase: Update, access: Access, *, replicated: bool) -> Plan | None:
        if phase.through is None:
            return None
        plan = self.plans.get(phase.through)
        if plan is None or not isinstance(plan.phase, Compute) or plan.phase.state is not None:
            known = [f"`{name}`" for name, p in self.plans.items() if isinstance(p.phase, Compute)]
            raise ConfigurationError(
                f"`through` of phase `{phase.name}` is `{phase.through}`, which isn't an earlier `Compute` (without "
                f"`state`); there {'is ' + ', '.join(known) if known else 'is none'}."
            )
        if not plan.outputs.keys() & access.reads:
            raise ConfigurationError(
                f"phase `{phase.name}` goes through `{phase.through}`, but its loss reads none of "
                f"{listed(plan.outputs)}: no gradient can reach what it trains."
            )
        self._check_way_through(phase, plan, access, replicated=replicated)
        if phase.every % plan.phase.every:
            raise ConfigurationError(
                f"phase `{phase.name}` goes through `{phase.through}`, which is due on every {plan.phase.every} steps "
                "only: give both the same `every`."
            )
        return plan

    def _check_way_through(self, phase: Update, source: Plan, access: Access, *, replicated: bool) -> None:
        """Raises an error if `phase` would get wrong gradients through the `Compute` `source`."""
        trained = self._paths_of(phase.variables())
        direct = [trained[id(variable)] for variable in access.variables if id(variable) in trained]
        if direct:
            raise ConfigurationError(
                f"the loss of phase `{phase.name}` reads `{direct[0]}`, which it trains, but its gradients go through "
                f"`{source.name}` alone. Compute that part of the loss in `{source.name}` as well, return it as "
                "another output, one value per row, and read it here."
            )
        sources = [source.access.ancestries[key].reads for key in source.outputs.keys() & access.reads]
        ways = {
            f"the loss of phase `{phase.name}`": access.reads - access.shapes_only,
            f"`{source.name}`": frozenset().union(*sources),
        }
        for reader, keys in ways.items():
            other = self._made_with(trained, keys, but=source)
            if other is not None:
                key, maker, path = other
                raise ConfigurationError(
                    f"phase `{phase.name}` goes through `{source.name}`, but {reader} reads `{key}` as well, which "
                    f"comes from phase `{maker}` and `{path}`, which `{phase.name}` trains: no gradient would go that "
                    "way. Make both in one `Compute`, with `tf.stop_gradient` around intended constants."
                )
        read = {id(variable) for variable in source.access.variables}
        order = list(self.plans)
        for plan in (self.plans[name] for name in order[order.index(source.name) + 1 :]):
            between = plan.phase.variables() if isinstance(plan.phase, Update) else {}
            if not read.isdisjoint(paths_by_id(between)):
                raise ConfigurationError(
                    f"phase `{phase.name}` goes through `{source.name}`, but phase `{plan.name}` has updated a "
                    f"network of it in between, so `{source.name}` belongs to older weights: put `{phase.name}` before "
                    f"`{plan.name}`, let one phase train both networks, or let each make its own pass in its loss."
                )
        # A synchronised layer needs its replicas to take each microbatch together, and the original pass.
        mixing = source.phase.mixes_rows and source.replicated and (source.microbatches > 1 or source.phase.every > 1)
        mixing |= phase.mixes_rows and replicated and self._microbatches_of(phase) > 1
        if mixing and self.replicas > 1:
            raise ConfigurationError(
                f"phase `{phase.name}` goes through `{source.name}` and rows are mixed: on several replicas that needs "
                f"`microbatches` and `every` of 1. Let `{source.name}` run on one device (`placement=ONE_DEVICE`), or "
                f"make its outputs in the loss of `{phase.name}` itself."
            )

    def _check_reached(self, phase: Update, access: Access) -> None:
        """Raises an error if gradients should pass an earlier phase's output, which needs `through`."""
        read = {id(variable) for variable in access.variables}
        trained = self._paths_of({p: v for p, v in phase.variables().items() if read.isdisjoint(paths_by_id({p: v}))})
        found = self._made_with(trained, access.reads - access.shapes_only)
        if found is not None:
            key, maker, path = found
            raise ConfigurationError(
                f"phase `{phase.name}` trains `{path}`, which its loss reads only through `{key}`, an output of phase "
                f"`{maker}`: outputs of earlier phases are constants. Set `through={maker!r}` if that is a `Compute`, "
                "so that gradients continue through it, or make the pass in the loss."
            )

    def _paths_of(self, variables: Mapping[str, tf.Variable]) -> dict[int, str]:
        return {part: self.paths.get(part, path) for part, path in paths_by_id(variables).items()}

    def _made_with(
        self, trained: Mapping[int, str], keys: Iterable[str], but: Plan | None = None
    ) -> tuple[str, str, str] | None:
        """Finds a value of `keys` that depends on a `trained` variable. Returns its key, phase and variable's path."""
        for key in sorted(keys):
            maker = self.plans.get(self.makers[key].name) if key in self.makers else None
            if maker is None or maker is but or not self.known[key].dtype.is_floating:
                continue
            path = self._way_to(trained, maker, key)
            if path is not None:
                return key, maker.name, path
        return None

    def _way_to(self, trained: Mapping[int, str], plan: Plan, key: str) -> str | None:
        """Returns the path of a `trained` variable on which output `key` of `plan` depends, or None."""
        made_of = plan.access.ancestries[key]
        for variable in made_of.variables:
            if id(variable) in trained:
                return trained[id(variable)]
        found = self._made_with(trained, made_of.reads)
        return found and found[2]

    def _check_curvature(self, plan: Plan, specs: Specs) -> None:
        """Raises a `ConfigurationError` if the optimizer needs a curvature that the phase can't estimate."""
        phase = plan.phase
        if not isinstance(phase, Update) or phase.optimizer.curvature is None:
            return
        for other in ("mixes_rows", "through", "clip_examples"):
            if getattr(phase, other):
                raise ConfigurationError(
                    f"phase `{phase.name}` trains by `{phase.optimizer.name}`, which estimates the curvature of its "
                    f"loss, but has `{other}`, for which no second gradient is computed: leave one out."
                )
        if not phase.optimizer.curvature.sampled:
            return
        if phase.sampled_loss is None:
            raise ConfigurationError(
                f"phase `{phase.name}` trains by `{phase.optimizer.name}`, which estimates curvature by a loss on "
                "labels drawn from the model: give the phase one, `Update(..., sampled_loss=self.sampled_loss)`, or "
                'set `sophia.estimator = "hutchinson"`.'
            )
        usable = {key: spec for key, spec in specs.items() if key in plan.access.reads - plan.access.shapes_only}
        unread = dict.fromkeys(specs.keys() - usable.keys(), "`loss` doesn't read it")
        found = describe_loss(
            phase.sampled_loss, usable, plan.name, unread, mixes_rows=False, held=self.held, narrowing=plan.narrowing
        )
        if (found.weighted, found.values) != (plan.loss and plan.loss.weighted, plan.loss and plan.loss.values):
            raise ConfigurationError(
                f"`sampled_loss` of phase `{phase.name}` returns other losses than its `loss`: return as many values, "
                "and the same `weight`."
            )

    def _check_one_device_reads(self, plan: Plan) -> None:
        if not plan.replicated or self.replicas == 1:
            return
        found = [v for v in plan.access.variables if id(v) in self.one_device_ids]
        if found:
            raise ConfigurationError(
                f"phase `{plan.name}` runs on every replica and reads `{found[0].name}` of a network that the task "
                "keeps on one device (`one_device`). Let it run there (`placement=ONE_DEVICE`, or in gin "
                f"`Experiment.placements = {{'{plan.name}': @on_one_device()}}`), or let a `Compute` on one device "
                "make what it needs and read that."
            )


def _read(access: Access, specs: Specs) -> tuple[str, ...]:
    """Returns the keys that a phase reads. If it reads none, returns the smallest value's key, to count rows."""
    smallest = min(specs, key=lambda key: specs[key].shape.num_elements() * specs[key].dtype.size)
    return tuple(key for key in specs if key in access.reads) or (smallest,)
