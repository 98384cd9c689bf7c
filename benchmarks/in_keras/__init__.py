"""Adversarial training in Keras with an overridden `train_step`, as in its own guides."""
