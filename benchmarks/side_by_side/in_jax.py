"""A digit's class from its pixels, with JAX and Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

train, test = np.load("train.npz"), np.load("test.npz")


def initial(key):
    first, second = jax.random.split(key)
    he = jax.nn.initializers.he_normal()
    return {
        "w1": he(first, [64, 128]), "b1": jnp.zeros([128]),
        "w2": he(second, [128, 10]), "b2": jnp.zeros([10]),
    }  # fmt: skip


def net(weights, images):
    hidden = jax.nn.relu(images @ weights["w1"] + weights["b1"])
    return hidden @ weights["w2"] + weights["b2"]


def loss(weights, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(net(weights, images), labels).mean()


optimizer = optax.adamw(3e-3, weight_decay=1e-2)


@jax.jit
def step(weights, state, images, labels):
    gradients = jax.grad(loss)(weights, images, labels)
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state


weights = initial(jax.random.key(0))
state, random = optimizer.init(weights), np.random.default_rng(0)
for _ in range(2000):
    rows = random.choice(len(train["label"]), 32, replace=False)
    weights, state = step(weights, state, train["image"][rows], train["label"][rows])
np.savez("jax.npz", **weights)
predicted = jnp.argmax(net(weights, test["image"]), axis=1)
print("accuracy", float(jnp.mean(predicted == test["label"])))
