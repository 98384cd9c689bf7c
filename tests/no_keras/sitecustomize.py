"""On PYTHONPATH, makes Keras unimportable in a subprocess of the tests."""

import sys

sys.modules["keras"] = None
sys.modules["tf_keras"] = None
