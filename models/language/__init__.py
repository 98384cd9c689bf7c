"""Language models: the network that predicts tokens, text generation, and the task that trains it."""

from models.language.bert import Bert, BertConfig
from models.language.bert_weights import bert_weights
from models.language.config import TransformerConfig
from models.language.gpt2 import gpt2_weights
from models.language.llama import llama_weights
from models.language.lstm import LSTMLanguageModel, StackedLSTM
from models.language.masked import MaskedLanguageModel
from models.language.sampling import beam_search, greedy, sampled
from models.language.t5 import T5, T5Config
from models.language.t5_weights import t5_weights
from models.language.task import LanguageModel
from models.language.text_to_text import TextToText
from models.language.transformer import Transformer

__all__ = [
    "T5",
    "Bert",
    "BertConfig",
    "LSTMLanguageModel",
    "LanguageModel",
    "MaskedLanguageModel",
    "StackedLSTM",
    "T5Config",
    "TextToText",
    "Transformer",
    "TransformerConfig",
    "beam_search",
    "bert_weights",
    "gpt2_weights",
    "greedy",
    "llama_weights",
    "sampled",
    "t5_weights",
]
