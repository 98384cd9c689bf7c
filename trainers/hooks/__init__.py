"""What happens between chunks of steps: the base class, what it sees of a run, and hooks that look at what is made."""

from trainers.hooks.activations import Activations
from trainers.hooks.base import Hook, Run
from trainers.hooks.digits import DigitQuality, digit_quality, kept_digits
from trainers.hooks.early_stopping import EarlyStopping
from trainers.hooks.histograms import Histograms
from trainers.hooks.norms import Norms
from trainers.hooks.probe import LinearProbe
from trainers.hooks.reconstructions import Reconstructions
from trainers.hooks.samples import Judge, Quality, SampleGrid
from trainers.hooks.texts import Texts
from trainers.hooks.translations import Translations

__all__ = [
    "Activations",
    "DigitQuality",
    "EarlyStopping",
    "Histograms",
    "Hook",
    "Judge",
    "LinearProbe",
    "Norms",
    "Quality",
    "Reconstructions",
    "Run",
    "SampleGrid",
    "Texts",
    "Translations",
    "digit_quality",
    "kept_digits",
]
