"""A digit's class from its pixels, with Sonnet and a custom loop."""

import numpy as np
import sonnet as snt
import tensorflow as tf

train, test = np.load("train.npz"), np.load("test.npz")
batches = tf.data.Dataset.from_tensor_slices((train["image"], train["label"])).shuffle(2000).repeat().batch(32)

strategy = snt.distribute.Replicator()
with strategy.scope():
    net = snt.nets.MLP([128, 10])
    optimizer = snt.optimizers.Adam(3e-3)  # Sonnet has no decoupled weight decay


def step(images, labels):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, net(images))
        loss = tf.reduce_sum(losses) / 32  # of the whole batch, whatever this replica's part of it
    gradients = tape.gradient(loss, net.trainable_variables)
    context = tf.distribute.get_replica_context()
    optimizer.apply(context.all_reduce("sum", gradients), net.trainable_variables)
    return loss


@tf.function
def train_step(images, labels):
    return strategy.run(step, [images, labels])


net(train["image"][:1])  # makes the variables
for images, labels in strategy.experimental_distribute_dataset(batches.take(2000)):
    train_step(images, labels)
tf.train.Checkpoint(net=net, optimizer=optimizer).save("sonnet/checkpoint")
predicted = np.argmax(net(test["image"]), axis=1)
print("accuracy", np.mean(predicted == test["label"]))
