"""Makes a GPT-2 with random weights, and saves it with its logits for random tokens; needs PyTorch.

python in_transformers.py FOLDER '{"n_layer": 2}'
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(folder: Path, settings: dict[str, int]) -> None:
    """Writes the model into `folder`, with tokens and their logits."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initially biases are zero and scales one
            parameter += torch.randn_like(parameter) * 0.02
        tokens = torch.randint(model.config.vocab_size, [2, min(model.config.n_positions, 128)])
        logits = model(tokens).logits
    model.save_pretrained(folder)
    np.savez(folder / "computed.npz", tokens=tokens.numpy(), logits=logits.numpy())
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
