"""Generative adversarial networks: pairs of networks, and the task that trains one."""

from models.gan.dcgan import dcgan_networks
from models.gan.mlp import mlp_networks
from models.gan.task import Gan

__all__ = ["Gan", "dcgan_networks", "mlp_networks"]
