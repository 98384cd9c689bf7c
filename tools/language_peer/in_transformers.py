"""Makes and loads language models; needs PyTorch and `transformers`.

python in_transformers.py make FOLDER gpt2 '{"n_layer": 2}'
python in_transformers.py load FOLDER BACK
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def make(folder: Path, kind: str, settings: dict[str, int], *, shard: str, dtype: str) -> None:
    """Writes a model with random weights into `folder`, with tokens and their logits."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initially biases are zero and scales one
            parameter += torch.randn_like(parameter) * 0.02
        model = model.to(getattr(torch, dtype)).float()  # rounded, if the file is narrow
        tokens = torch.randint(model.config.vocab_size, [2, min(model.config.max_position_embeddings, 128)])
        logits = model(tokens).logits
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    np.savez(folder / "computed.npz", tokens=tokens.numpy(), logits=logits.numpy())
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}", flush=True)


def load(folder: Path, back: Path) -> None:
    """Compares the model in `back` with that in `folder`, tensor by tensor, and their logits."""
    one, other = (transformers.AutoModelForCausalLM.from_pretrained(x, dtype=torch.float32) for x in (folder, back))
    expected, found = one.state_dict(), other.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), f"{name} came back with other values"
    with np.load(folder / "computed.npz") as computed, torch.no_grad():
        tokens = torch.from_numpy(computed["tokens"])
        assert torch.equal(one(tokens).logits, other(tokens).logits), "the settings came back with other values"


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1] == "make":
        options = json.loads(sys.argv[4])
        own = {name: options.pop(name) for name in ("shard", "dtype")}
        make(Path(sys.argv[2]), sys.argv[3], options, **own)
    else:
        load(Path(sys.argv[2]), Path(sys.argv[3]))
