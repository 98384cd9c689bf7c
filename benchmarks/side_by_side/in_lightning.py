"""A digit's class from its pixels, with PyTorch Lightning."""

import lightning
import numpy as np
import torch
from torch.nn import functional


def batches(name, **options):
    arrays = np.load(name)
    images, labels = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["label"]).long()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32, **options)


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch, index):
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=1e-2)


lightning.seed_everything(0)
digits = Digits()
trainer = lightning.Trainer(max_steps=2000, accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.fit(digits, batches("train.npz", shuffle=True))
(figures,) = trainer.validate(digits, batches("test.npz"), verbose=False)
print("accuracy", figures["accuracy"])
