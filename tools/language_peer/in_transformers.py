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
    model = class_of(kind).from_config(transformers.AutoConfig.for_model(kind, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initially biases are zero and scales one
            parameter += torch.randn_like(parameter) * 0.02
        model = model.to(getattr(torch, dtype)).float()  # rounded, if the file is narrow
        longest = getattr(model.config, "max_position_embeddings", 128)  # T5 has no limit
        tokens = torch.randint(model.config.vocab_size, [2, min(longest, 128)])
        inputs = {"input_ids": tokens, **masks(kind, tokens)}
        logits = model(**inputs).logits
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    (folder / "kind").write_text(kind)
    np.savez(folder / "computed.npz", logits=logits.numpy(), **{name: x.numpy() for name, x in inputs.items()})
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}", flush=True)


def class_of(kind: str) -> type:
    special = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    return special.get(kind, transformers.AutoModelForCausalLM)


def masks(kind: str, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns padding after a third of the second row, with the first row's second segment or a decoder's inputs."""
    if kind not in ("bert", "t5"):
        return {}
    seen, types = torch.ones_like(tokens), torch.zeros_like(tokens)
    seen[1, tokens.shape[1] // 3 :], types[0, tokens.shape[1] // 2 :] = 0, 1
    more = {"decoder_input_ids": tokens[:, 20:].flip(1)} if kind == "t5" else {"token_type_ids": types}
    return {"attention_mask": seen, **more}


def load(folder: Path, back: Path) -> None:
    """Compares the model in `back` with that in `folder`, tensor by tensor, and their logits."""
    model = class_of((folder / "kind").read_text())
    one, other = (model.from_pretrained(x, dtype=torch.float32) for x in (folder, back))
    expected, found = one.state_dict(), other.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), f"{name} came back with other values"
    with np.load(folder / "computed.npz") as computed, torch.no_grad():
        inputs = {name: torch.from_numpy(x) for name, x in computed.items() if name != "logits"}
        assert torch.equal(one(**inputs).logits, other(**inputs).logits), "the settings came back with other values"


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1] == "make":
        options = json.loads(sys.argv[4])
        own = {name: options.pop(name) for name in ("shard", "dtype")}
        make(Path(sys.argv[2]), sys.argv[3], options, **own)
    else:
        load(Path(sys.argv[2]), Path(sys.argv[3]))
