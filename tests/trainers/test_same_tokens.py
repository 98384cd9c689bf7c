"""What is learnt of tokens means something together with their tokenizer alone: another is refused by name."""

import pytest
from test_text_data import bigrams
from trainer_lab import make, newest, train

from core.data import text_files
from core.data.tokenizers import ByteTokenizer
from core.errors import ConfigurationError


class Turned(ByteTokenizer):
    """Counts bytes from the other end."""

    def __init__(self):
        super().__init__()
        self._texts[:256] = self._texts[255::-1]
        self.identity = "bytes turned"

    def encode(self, text):
        return [255 - value for value in text]


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"all work and no play " * 30)
    return lambda tokenizer=None: text_files(str(tmp_path / "a.txt"), 8, tokenizer=tokenizer)


def test_evaluation_reads_the_tokens_that_are_trained_on(tmp_path, texts):
    with pytest.raises(ConfigurationError, match=r"`Experiment.eval_source` has tokens of 'bytes turned', but those"):
        make(tmp_path, task=bigrams(), source=texts(), eval_source=texts(Turned()))


def test_a_checkpoint_goes_on_with_its_own_tokenizer_alone(tmp_path, texts):
    settings = {"steps": 4, "chunk_steps": 2, "checkpoint_every": 2}
    trainer = make(tmp_path, task=bigrams(), source=texts(), **settings)
    train(trainer)
    saved = newest(trainer)
    make(tmp_path, task=bigrams(), source=texts(), **settings).state.restore(saved)
    other = make(tmp_path, task=bigrams(), source=texts(Turned()), **settings)
    with pytest.raises(ConfigurationError, match=r"step-000000004 learnt tokens of 'bytes', but those of .* 'bytes t"):
        other.state.restore(saved)
