"""The history of images that CycleGAN shows its discriminators (Shrivastava et al., 2017), as in the paper's code."""

from collections.abc import Sequence

import tensorflow as tf


class History:
    """Up to `size` images, and how many there are."""

    def __init__(self, size: int, image_shape: Sequence[int]):
        self.size, self.image_shape = size, list(image_shape)
        self.images = tf.Variable(tf.zeros([size, *image_shape]), trainable=False)
        self.count = tf.Variable(0, trainable=False)

    @tf.function
    def show(self, images: tf.Tensor) -> tf.Tensor:
        """For each image itself or, of a full history by half the chance, an old one whose place it takes."""
        rows = images.shape[0]
        shown = tf.TensorArray(tf.float32, rows, element_shape=self.image_shape)
        for row in tf.range(rows):
            image = images[row]
            if self.count < self.size:
                self.images.scatter_update(tf.IndexedSlices(image, self.count))
                self.count.assign_add(1)
            elif tf.random.uniform([]) < 0.5:
                place = tf.random.uniform([], maxval=self.size, dtype=tf.int32)
                # Read by a gather: an index into the variable would first read all of it.
                old = tf.gather(self.images, place)
                self.images.scatter_update(tf.IndexedSlices(image, place))
                image = old
            shown = shown.write(row, image)
        return shown.stack()
