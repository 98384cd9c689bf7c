"""Imports of a command, of which `test_streams.py` shows what it leaves out: without the garbage collector."""

import gc

from trainers.importing import without_collector


def test_collector_is_off_during_imports():
    assert gc.isenabled()
    before = gc.get_freeze_count()
    try:
        with without_collector():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
