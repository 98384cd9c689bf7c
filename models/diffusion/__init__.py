"""Diffusion models: formulations, the network, samplers, and the tasks that train them."""

from models.diffusion.ddpm import Ddpm
from models.diffusion.denoiser import Coefficients, Formulation, denoised, mixed, velocity
from models.diffusion.edm import Edm
from models.diffusion.mlp import DiffusionMlp, diffusion_mlp
from models.diffusion.rectified_flow import RectifiedFlow
from models.diffusion.samplers import ddim, euler, heun
from models.diffusion.task import Diffusion
from models.diffusion.unet import UNet, unet
from models.diffusion.v_prediction import VPrediction

__all__ = [
    "Coefficients",
    "Ddpm",
    "Diffusion",
    "DiffusionMlp",
    "Edm",
    "Formulation",
    "RectifiedFlow",
    "UNet",
    "VPrediction",
    "ddim",
    "denoised",
    "diffusion_mlp",
    "euler",
    "heun",
    "mixed",
    "unet",
    "velocity",
]
