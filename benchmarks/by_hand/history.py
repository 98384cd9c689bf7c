"""CycleGAN's image history for its discriminators (Shrivastava et al., 2017), as in the paper's code."""

from collections.abc import Sequence

import tensorflow as tf


class History:
    """Holds up to `size` images and their count."""

    def __init__(self, size: int, image_shape: Sequence[int]):
        self.size, self.image_shape = size, list(image_shape)
        self.images = tf.Variable(tf.zeros([size, *image_shape]), trainable=False)
        self.count = tf.Variable(0, trainable=False)

    @tf.function
    def show(self, images: tf.Tensor) -> tf.Tensor:
        """Returns each image or, with probability 1/2 once the history is full, an old one that it replaces."""
        rows = images.shape[0]
        shown = tf.TensorArray(tf.float32, rows, element_shape=self.image_shape)
        for row in tf.range(rows):
            image = images[row]
            if self.count < self.size:
                self.images.scatter_update(tf.IndexedSlices(image, self.count))
                self.count.assign_add(1)
            elif tf.random.uniform([]) < 0.5:
                place = tf.random.uniform([], maxval=self.size, dtype=tf.int32)
                # Read with a gather: indexing the variable would first read all of it.
                old = tf.gather(self.images, place)
                self.images.scatter_update(tf.IndexedSlices(image, place))
                image = old
            shown = shown.write(row, image)
        return shown.stack()
