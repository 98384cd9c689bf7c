"""`--mode=evaluate`: the newest checkpoint of the workdir, or another, on all that is held out."""

from core.telemetry import Console, Telemetry
from core.workers import is_chief
from trainers.hung import ending_where_it_hangs
from trainers.kept_figures import keep
from trainers.session import Session


def run(session: Session) -> int:
    """Prints a line of figures for each source, and keeps them with those of the run."""
    trainer = session.trainer()
    manifest = session.required_checkpoint()
    trainer.state.restore(manifest)
    trainer.telemetry = Telemetry([Console(total_steps=manifest.step)])
    found = {}
    with ending_where_it_hangs(trainer):
        trainer.watchdog.begin("evaluation", "the evaluation")
        for split, figures in trainer.evaluations.evaluate(trainer.watchdog.alive):
            trainer.report(split, figures)
            found[split] = figures
    if not is_chief():
        return 0
    if changes := session.changes(manifest, trainer):
        print(f"the figures aren't kept, because the run has another configuration:\n{changes}", flush=True)
    elif session.workdir.take():
        keep(session.workdir.metrics, manifest.step, found)
    else:
        keep(session.workdir.evaluations, manifest.step, found, of=manifest)
        print(f"a run is at work there: the figures are kept in `{session.workdir.evaluations}`", flush=True)
    return 0
