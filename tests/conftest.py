"""The suite runs without Keras: it can't be imported, and what TensorFlow passes on from it raises."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.modules["keras"] = None  # type: ignore[assignment]
sys.modules["tf_keras"] = None  # type: ignore[assignment]
