"""One architecture a file: its networks, then the task that trains them."""

from models.convnet import ConvNet, ConvNetClassifier
from models.linear import LinearClassifier, SoftmaxRegression
from models.mlp import Mlp, MlpClassifier

__all__ = ["ConvNet", "ConvNetClassifier", "LinearClassifier", "Mlp", "MlpClassifier", "SoftmaxRegression"]
