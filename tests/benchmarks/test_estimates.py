"""What a dry run says that a process takes is what a fresh one takes, trained by the real command."""

import pytest

from benchmarks.estimates import LARGE, compared


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits_gan", "text_nano"])
def test_a_process_takes_what_was_said(name):
    found = compared(name)
    assert found["said_peak"] == pytest.approx(found["peak"], rel=0.15)
    if found["step"] > LARGE:
        assert found["said_step"] == pytest.approx(found["step"], rel=0.25)
