"""Language models: the network that predicts tokens, text generation, and the task that trains it."""

from models.language.config import TransformerConfig
from models.language.gpt2 import gpt2_weights
from models.language.llama import llama_weights
from models.language.lstm import LSTMLanguageModel, StackedLSTM
from models.language.sampling import beam_search, greedy, sampled
from models.language.task import LanguageModel
from models.language.transformer import Transformer

__all__ = [
    "LSTMLanguageModel",
    "LanguageModel",
    "StackedLSTM",
    "Transformer",
    "TransformerConfig",
    "beam_search",
    "gpt2_weights",
    "greedy",
    "llama_weights",
    "sampled",
]
