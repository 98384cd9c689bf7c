"""PyTorch with Lightning Fabric: eager or `torch.compile`, fused Adam, channels-last images."""

import os
from itertools import cycle

import lightning
import torch
from torch.nn import functional

from benchmarks.peers.programs.fabric_nets import NETS
from benchmarks.peers.programs.work import main


def training(work, *, compiled):
    torch.set_num_threads(os.cpu_count())
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    net = NETS[work.name](work.weights)
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=1e-3, fused=True))
    data = [torch.from_numpy(x) for x in work.data.values()]
    order = cycle(torch.from_numpy(work.order))

    def loss_of(*batch):
        logits, targets = model(*batch)
        return functional.cross_entropy(logits, targets)

    loss_of = torch.compile(loss_of) if compiled else loss_of

    def advance():
        total = torch.zeros([])
        for _ in range(work.chunk):
            rows = next(order)
            optimizer.zero_grad()
            loss = loss_of(*(x[rows] for x in data))
            fabric.backward(loss)
            optimizer.step()
            total += loss.detach()
        return total / work.chunk

    return advance


if __name__ == "__main__":
    main(
        {
            "eager": lambda work: training(work, compiled=False),
            "compiled": lambda work: training(work, compiled=True),
        }
    )
