"""The works' networks in PyTorch, which return logits and targets."""

import torch
from torch import nn
from torch.nn import functional


def given(weights, name):
    """Makes a linear layer of a matrix that multiplies from the right."""
    layer = nn.Linear(*weights[f"{name}w"].shape)
    layer.weight.data = torch.from_numpy(weights[f"{name}w"].T.copy())
    layer.bias.data = torch.from_numpy(weights[f"{name}b"])
    return layer


class Flat(nn.Module):
    """The perceptron and softmax regression."""

    def __init__(self, weights):
        super().__init__()
        names = ["layers/0/", "layers/1/"] if "layers/0/w" in weights else [""]
        self.layers = nn.ModuleList(given(weights, name) for name in names)

    def forward(self, image, label):
        x = image.float() * (1.0 / 255.0)
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        return self.layers[-1](x), label.long()


class Conv(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.convolutions = nn.ModuleList()
        for i in range(5):
            kernel = torch.from_numpy(weights[f"convolutions/{i}/w"]).permute(3, 2, 0, 1).contiguous()
            layer = nn.Conv2d(kernel.shape[1], kernel.shape[0], 3, padding=1)
            layer.weight.data, layer.bias.data = kernel, torch.from_numpy(weights[f"convolutions/{i}/b"])
            self.convolutions.append(layer)
        self.logits = given(weights, "logits/")
        self.to(memory_format=torch.channels_last)

    def forward(self, image, label):
        x = image.permute(0, 3, 1, 2).float() * (1.0 / 255.0)
        for i, layer in enumerate(self.convolutions):
            x = functional.relu(layer(x))
            if i in (0, 2):
                x = functional.max_pool2d(x, 2)
        return self.logits(x.mean((2, 3))), label.long()


class Block(nn.Module):
    def __init__(self, weights, name, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = norm(weights, f"{name}norm_1/"), norm(weights, f"{name}norm_2/")
        self.qkv, self.out = given(weights, f"{name}attention/qkv/"), given(weights, f"{name}attention/out/")
        self.up, self.down = given(weights, f"{name}feed_forward/up/"), given(weights, f"{name}feed_forward/down/")

    def forward(self, x):
        rows, time, size = x.shape
        qkv = self.qkv(self.norm_1(x)).view(rows, time, 3, self.heads, size // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, time, size))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, weights, *, blocks=4, heads=4):
        super().__init__()
        self.tokens = nn.Parameter(torch.from_numpy(weights["tokens/w"]))
        self.positions = nn.Parameter(torch.from_numpy(weights["positions/w"]))
        self.blocks = nn.ModuleList(Block(weights, f"blocks/{i}/", heads) for i in range(blocks))
        self.norm = norm(weights, "norm/")

    def forward(self, tokens):
        tokens, targets = tokens[:, :-1], tokens[:, 1:]
        x = functional.embedding(tokens, self.tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens).flatten(0, 1), targets.flatten().long()


def norm(weights, name):
    layer = nn.LayerNorm(weights[f"{name}scale"].shape, eps=1e-5)
    layer.weight.data = torch.from_numpy(weights[f"{name}scale"])
    layer.bias.data = torch.from_numpy(weights[f"{name}offset"])
    return layer


NETS = {"mlp": Flat, "softmax": Flat, "conv": Conv, "transformer": Transformer}
