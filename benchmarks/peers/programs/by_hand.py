"""Training loops in plain TensorFlow, with Adam as a kernel, or written out if the loop carries the weights."""

import os
from itertools import cycle

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks.peers.programs import gans
from benchmarks.peers.programs.hand_nets import LOSSES
from benchmarks.peers.programs.work import main

RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def data_of(work):
    return {name: tf.constant(x) for name, x in work.data.items()}


def batches(work, indices):
    """Returns an endless data set of the examples at `indices`, read with one vectorised gather per batch."""
    data = data_of(work)

    def gathered(rows):
        return {name: tf.gather(values, rows) for name, values in data.items()}

    def with_latents(rows, latents):
        return {**gathered(rows), "latent": latents}

    if work.latents is None:
        read = tf.data.Dataset.from_tensor_slices(indices).repeat().map(gathered)
    else:
        read = tf.data.Dataset.from_tensor_slices((indices, work.latents)).repeat().map(with_latents)
    return read.prefetch(tf.data.AUTOTUNE)


def corrected(t):
    """Returns rate and epsilon with both of Adam's corrections included (Kingma and Ba, 2015, before section 2.1)."""
    correction = tf.sqrt(1.0 - BETA_2**t)
    return RATE * correction / (1.0 - BETA_1**t), EPSILON * correction


def stepping(work, *, jit):
    """Returns a step over variables."""
    if work.name in gans.STEPS:
        return tf.function(gans.STEPS[work.name](work), jit_compile=jit)
    loss_of = LOSSES[work.name]
    weights = {name: tf.Variable(value) for name, value in work.weights.items()}
    slots = {name: (tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for name, v in weights.items()}
    count = tf.Variable(0.0)

    @tf.function(jit_compile=jit, autograph=False)
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, batch)
        gradients = tape.gradient(loss, weights)
        alpha, epsilon = corrected(count.assign_add(1.0, read_value=True))
        for name, variable in weights.items():
            m, v = slots[name]
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=m.handle, v=v.handle, grad=tf.convert_to_tensor(gradients[name]), lr=alpha,
                beta1=BETA_1, beta2=BETA_2, epsilon=epsilon, beta1_power=0.0, beta2_power=0.0,
            )  # fmt: skip
        return loss

    return step


def a_step_a_call(work):
    step, iterator = stepping(work, jit=None), iter(batches(work, work.order))

    def advance():
        return tf.add_n([step(next(iterator)) for _ in range(work.chunk)]) / work.chunk

    return advance


def looped(work, *, jit):
    """Runs a loop in the graph that takes its batches from an iterator."""
    step, iterator = stepping(work, jit=jit), iter(batches(work, work.order))

    @tf.function
    def loop(iterator):
        total = 0.0
        for _ in tf.range(work.chunk):
            total += step(next(iterator))
        return total / work.chunk

    return lambda: loop(iterator)


def carrying(work, read, before=lambda given: given):
    """Returns a chunk of steps as one XLA program that carries weights and moments.

    `before` maps the program's input to the data of all steps, `read` maps that to one step's batch.
    """
    loss_of = LOSSES[work.name]
    variables = [
        {name: tf.Variable(start(value)) for name, value in work.weights.items()}
        for start in (tf.identity, tf.zeros_like, tf.zeros_like)
    ]
    count = tf.Variable(0.0)

    @tf.function(jit_compile=True, autograph=False)
    def chunk(given):
        given = before(given)

        def body(i, t, total, w, m, v):
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = loss_of(w, read(given, i))
            gradients, t = tape.gradient(loss, w), t + 1.0
            alpha, epsilon = corrected(t)
            g = {name: tf.convert_to_tensor(x) for name, x in gradients.items()}
            m = {name: x + (1.0 - BETA_1) * (g[name] - x) for name, x in m.items()}
            v = {name: x + (1.0 - BETA_2) * (tf.square(g[name]) - x) for name, x in v.items()}
            w = {name: x - alpha * m[name] / (tf.sqrt(v[name]) + epsilon) for name, x in w.items()}
            return i + 1, t, total + loss, w, m, v

        begin = [{name: x.read_value() for name, x in group.items()} for group in variables]
        _, t, total, *end = tf.while_loop(lambda i, *_: i < work.chunk, body, (0, count.read_value(), 0.0, *begin))
        for group, values in zip(variables, end, strict=True):
            for name, variable in group.items():
                variable.assign(values[name])
        count.assign(t)
        return total / work.chunk

    return chunk


def one_of(stacked, i):
    return {name: x[i] for name, x in stacked.items()}


def fed(work):
    chunk, iterator = carrying(work, one_of), iter(batches(work, work.chunks))
    return lambda: chunk(next(iterator))


def handed_indices(work, *, once):
    """Reads batches within the program: from all data, per step or per chunk."""
    data = data_of(work)

    def gathered(rows):
        return {name: tf.gather(x, rows) for name, x in data.items()}

    chunk = carrying(work, one_of, gathered) if once else carrying(work, lambda rows, i: gathered(rows[i]))
    chunks = cycle(work.chunks)
    return lambda: chunk(tf.constant(next(chunks)))


if __name__ == "__main__":
    main(
        {
            "step": a_step_a_call,
            "loop": lambda work: looped(work, jit=None),
            "xla": lambda work: looped(work, jit=True),
            "fed": fed,
            "indices": lambda work: handed_indices(work, once=False),
            "gather": lambda work: handed_indices(work, once=True),
        }
    )
