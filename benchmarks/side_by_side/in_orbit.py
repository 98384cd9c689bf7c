"""A digit's class from its pixels, with Orbit, and Sonnet for the network."""

import numpy as np
import orbit
import sonnet as snt
import tensorflow as tf

train, test = np.load("train.npz"), np.load("test.npz")


class Digits(orbit.StandardTrainer, orbit.StandardEvaluator):
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.net = snt.nets.MLP([128, 10])
            self.optimizer = snt.optimizers.Adam(3e-3)
            self.net(train["image"][:1])
        self.step = orbit.utils.create_global_step()
        batches = tf.data.Dataset.from_tensor_slices((train["image"], train["label"])).shuffle(2000).repeat().batch(32)
        held_out = tf.data.Dataset.from_tensor_slices((test["image"], test["label"])).batch(360)
        orbit.StandardTrainer.__init__(self, strategy.experimental_distribute_dataset(batches))
        orbit.StandardEvaluator.__init__(self, strategy.experimental_distribute_dataset(held_out))

    def train_step(self, iterator):
        def step(images, labels):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.net(images))
                loss = tf.reduce_sum(losses) / 32
            gradients = tape.gradient(loss, self.net.trainable_variables)
            context = tf.distribute.get_replica_context()
            self.optimizer.apply(context.all_reduce("sum", gradients), self.net.trainable_variables)

        self.strategy.run(step, args=next(iterator))
        self.step.assign_add(1)

    def eval_begin(self):
        self.right = tf.Variable(0.0)

    def eval_step(self, iterator):
        def step(images, labels):
            predicted = tf.argmax(self.net(images), axis=1, output_type=labels.dtype)
            return tf.reduce_sum(tf.cast(predicted == labels, tf.float32))

        right = self.strategy.run(step, args=next(iterator))
        self.right.assign_add(self.strategy.reduce("sum", right, axis=None))

    def eval_end(self):
        return {"accuracy": self.right / len(test["label"])}


strategy = snt.distribute.Replicator()
digits = Digits(strategy)
checkpoint = tf.train.Checkpoint(net=digits.net, optimizer=digits.optimizer, step=digits.step)
controller = orbit.Controller(
    trainer=digits,
    evaluator=digits,
    strategy=strategy,
    global_step=digits.step,
    steps_per_loop=100,
    checkpoint_manager=tf.train.CheckpointManager(checkpoint, "orbit", max_to_keep=3, step_counter=digits.step),
)
controller.train(2000)
figures = controller.evaluate()
print("accuracy", float(figures["accuracy"]))
