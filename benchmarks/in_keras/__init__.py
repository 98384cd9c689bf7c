"""Adversarial training in Keras, by an overridden `train_step`, as its own guides do it."""
