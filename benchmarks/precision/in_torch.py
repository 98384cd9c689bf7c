"""PyTorch's program: eager, with `torch.autocast` for bfloat16, fused Adam."""

import contextlib
import os
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from benchmarks.elsewhere import answer
from benchmarks.peers.programs.fabric_nets import Transformer, given
from benchmarks.precision.works import WORKS


class Perceptron(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        count = sum(name.endswith("/w") for name in weights)
        self.layers = torch.nn.ModuleList(given(weights, f"layers/{i}/") for i in range(count))

    def forward(self, image, label):
        for layer in self.layers[:-1]:
            image = functional.relu(layer(image))
        return self.layers[-1](image), label.long()


def main():
    name, folder, precision = sys.argv[1:]
    work = WORKS[name]
    torch.set_num_threads(os.cpu_count())
    weights = dict(np.load(Path(folder) / "weights.npz"))
    net = Perceptron(weights) if work.sizes else Transformer(weights, blocks=work.blocks, heads=work.heads)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)
    arrays = np.load(Path(folder) / "data.npz")
    data = [torch.from_numpy(arrays[key]) for key in (("image", "label") if work.sizes else ("tokens",))]
    starts = cycle(range(0, len(data[0]) - work.batch + 1, work.batch))

    def step():
        begin = next(starts)
        batch = [x[begin : begin + work.batch] for x in data]
        optimizer.zero_grad()
        narrow = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()
        with narrow:
            logits, targets = net(*batch)
            loss = functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def run():
        for _ in range(work.steps):
            loss = step()
        float(loss)

    step()
    answer(work.steps, run)


if __name__ == "__main__":
    main()
