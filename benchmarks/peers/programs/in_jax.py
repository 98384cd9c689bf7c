"""JAX with Optax: a jitted step a call, and `lax.scan` over a chunk of steps, with donated state."""

import functools
from itertools import cycle

import jax
import jax.numpy as jnp
import optax

from benchmarks.peers.programs.jax_nets import LOSSES
from benchmarks.peers.programs.work import main


def beginning(work):
    """Returns the optimizer, and the initial weights with its state."""
    optimizer = optax.adam(1e-3)
    weights = {name: jnp.asarray(value) for name, value in work.weights.items()}
    return optimizer, (weights, optimizer.init(weights))


def stepping(work, optimizer):
    def step(trained, batch):
        weights, state = trained
        loss, gradients = jax.value_and_grad(LOSSES[work.name])(weights, batch)
        updates, state = optimizer.update(gradients, state, weights)
        return (optax.apply_updates(weights, updates), state), loss

    return step


def a_step_a_call(work):
    optimizer, trained = beginning(work)
    step, arrays, order = jax.jit(stepping(work, optimizer), donate_argnums=0), work.data, cycle(work.order)

    def advance():
        nonlocal trained
        total = 0.0
        for _ in range(work.chunk):
            rows = next(order)
            trained, loss = step(trained, {name: x[rows] for name, x in arrays.items()})
            total += loss
        return total / work.chunk

    return advance


def fed(work):
    """`lax.scan` over stacked batches, which NumPy gathers during the previous chunk."""
    optimizer, trained = beginning(work)
    step, arrays, chunks = stepping(work, optimizer), work.data, cycle(work.chunks)

    @functools.partial(jax.jit, donate_argnums=0)
    def chunk(trained, batches):
        trained, losses = jax.lax.scan(step, trained, batches)
        return trained, losses.mean()

    def advance():
        nonlocal trained
        rows = next(chunks)
        trained, loss = chunk(trained, {name: x[rows] for name, x in arrays.items()})
        return loss

    return advance


def handed_indices(work, *, once):
    """Reads batches within the program: from all data, per step or per chunk."""
    optimizer, trained = beginning(work)
    step, chunks = stepping(work, optimizer), cycle(work.chunks)
    data = {name: jnp.asarray(value) for name, value in work.data.items()}

    def gathered(data, rows):
        return {name: x[rows] for name, x in data.items()}

    @functools.partial(jax.jit, donate_argnums=0)
    def chunk(trained, data, indices):
        if once:
            trained, losses = jax.lax.scan(step, trained, gathered(data, indices))
        else:
            trained, losses = jax.lax.scan(lambda t, rows: step(t, gathered(data, rows)), trained, indices)
        return trained, losses.mean()

    def advance():
        nonlocal trained
        trained, loss = chunk(trained, data, next(chunks))
        return loss

    return advance


if __name__ == "__main__":
    main(
        {
            "step": a_step_a_call,
            "scan": fed,
            "indices": lambda work: handed_indices(work, once=False),
            "gather": lambda work: handed_indices(work, once=True),
        }
    )
