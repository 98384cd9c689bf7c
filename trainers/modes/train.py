"""`--mode=train`: trains, or goes on training."""

import json

from core.errors import TapeloopError
from core.telemetry import Console, JsonLines, Telemetry, TensorBoard
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Trains to the last step and leaves a `result.json`, however the run ends."""
    trainer = session.trainer()
    if session.flags.eager:
        return _one_eager_step(trainer)
    manifest = session.claim()
    workdir = session.workdir
    if manifest is not None:
        trainer.restore(manifest)
        if trainer.step >= trainer.steps and workdir.result.exists():
            evaluation = json.loads(workdir.result.read_text())["evaluation"]
            print(f"already finished: {trainer.step} steps, {evaluation or 'no evaluation'} (`{workdir.path}`)")
            return 0
    console = Console(total_steps=trainer.steps)
    telemetry = Telemetry([console, JsonLines(workdir.metrics, trainer.step), TensorBoard(workdir.path, trainer.step)])
    if manifest is not None:
        telemetry.note(f"going on from step {trainer.step} (`{manifest.path.name}`)")
    try:
        evaluation = trainer.train(telemetry)
    except TapeloopError as error:
        workdir.write_result(
            step=trainer.step, exit_code=error.exit_code, reason=str(error), evaluation=trainer.evaluation
        )
        raise
    finally:
        telemetry.close()
    workdir.write_result(step=trainer.step, exit_code=0, reason="finished", evaluation=evaluation)
    print(f"finished: {trainer.step} steps, in `{workdir.path}`", flush=True)
    return 0


def _one_eager_step(trainer: Trainer) -> int:
    figures = trainer.eager_step()
    print("one step, not traced and not saved: " + ", ".join(f"{name} {x:.6g}" for name, x in figures.items()))
    return 0
