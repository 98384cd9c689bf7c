"""The gradient noise scale in the metric lines of a run."""

import math

from tests.trainers.hooks.hooks_lab import watched
from tests.trainers.trainer_lab import Deep
from trainers.hooks import NoiseScale


def test_metric_lines_have_the_noise_scale_since_the_last_line(tmp_path):
    file, _, _ = watched(tmp_path, NoiseScale(), task=Deep, microbatches=2, log_every=2)
    lines = file.of("train")
    assert lines
    assert all(math.isfinite(figures["noise_scale"]) for figures in lines.values())
