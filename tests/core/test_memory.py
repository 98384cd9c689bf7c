"""Kept memory, by the pages that the kernel maps for a block that fits into one freed before."""

import subprocess
import sys

import pytest

from tests.commands import CHECKOUT, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another system's allocator is left as it is")

PROBE = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def pages(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    libc.memset(block, 1, size)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages(24 << 20)
print("pages", pages(12 << 20))
"""


def pages_after(code: str, **variables: str) -> int:
    kept = {name: x for name, x in environment().items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    done = subprocess.run(
        [sys.executable, "-c", code + PROBE], env={**kept, **variables}, cwd=CHECKOUT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


KEEP = "from core.memory import keep_freed_memory; print(keep_freed_memory())"


def test_freed_memory_is_used_again() -> None:
    assert pages_after("") > 2000
    assert pages_after(KEEP) < 100


def test_the_command_keeps_it() -> None:
    assert pages_after("from trainers.main import main; assert main(['--gin_file=absent.gin']) == 2") < 100


@pytest.mark.parametrize("variable", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_an_allocator_that_is_set_up_is_left_alone(variable: str) -> None:
    value = {"MALLOC_ARENA_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}[variable]
    code = "from core.memory import keep_freed_memory; assert not keep_freed_memory()"
    assert pages_after(code, **{variable: value}) > 2000
