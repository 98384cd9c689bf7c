"""`--mode=evaluate`: evaluates a checkpoint of the workdir on all held-out sources."""

from collections.abc import Iterator, Mapping

from core.cluster import is_chief
from core.telemetry import Console, Telemetry
from trainers.lifecycle.train_to_end import ending_where_it_hangs
from trainers.runs.evaluations_file import differences, figures_at, keep
from trainers.session import Session

ROUNDING = 1e-4  # tolerance for metrics of the same weights on different machines


def _compared(split: str, own: Mapping[str, float], found: Mapping[str, float]) -> Iterator[str]:
    """Yields a warning for each metric of `found` that differs from the run's metric in `own` by more than rounding."""
    for name, apart in differences(own, found).items():
        if apart > ROUNDING:
            yield (
                f"Warning: `{name}` of `{split}` is {found[name]:.6g}, where the run itself found {own[name]:.6g}: its "
                "data, its code or a package isn't what it was. The run's line stays, and this one is kept in "
                "`evaluations.jsonl`."
            )


def run(session: Session) -> int:
    """Prints a line of metrics for each held-out source, and adds the metrics to the run's files."""
    trainer = session.trainer()
    manifest = session.required_checkpoint()
    trainer.state.restore(manifest)
    trainer.telemetry = Telemetry([Console(total_steps=manifest.step)])
    found = {}
    with ending_where_it_hangs(trainer), trainer.section("evaluation", "the evaluation"):
        for split, figures in trainer.evaluations.evaluate(trainer.watchdog.alive):
            trainer.report(split, figures)
            found[split] = figures
    if not is_chief():
        return 0
    if changes := session.changes(manifest, trainer):
        print(f"the metrics aren't stored, because the run has another configuration:\n{changes}", flush=True)
    elif session.workdir.take():
        own = figures_at(session.workdir.metrics, manifest.step)
        keep(session.workdir.metrics, manifest.step, {split: x for split, x in found.items() if split not in own})
        again = {split: x for split, x in found.items() if split in own}
        told = [text for split, figures in again.items() for text in _compared(split, own[split], figures)]
        if told:
            keep(session.workdir.evaluations, manifest.step, again, of=manifest)
            print("\n".join(told), flush=True)
    else:
        keep(session.workdir.evaluations, manifest.step, found, of=manifest)
        print(f"the run is still training: the metrics are stored in `{session.workdir.evaluations}`", flush=True)
    return 0
