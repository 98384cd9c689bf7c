"""Drops root's privilege to read and write files against their permissions."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

VERSION = 0x2008_0522  # of the structures below (capget(2))
FILES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def give_up() -> None:
    """Makes file permissions count for this process, even if it belongs to root."""
    data = _capabilities()
    data[0].effective &= ~FILES
    data[0].permitted &= data[0].effective
    data[0].inheritable &= data[0].effective
    _call("capset", data)


@contextlib.contextmanager
def given_up() -> Iterator[None]:
    """Makes file permissions count for this thread, within the block."""
    data = _capabilities()
    before = data[0].effective
    data[0].effective &= ~FILES
    _call("capset", data)
    try:
        yield
    finally:
        data[0].effective = before
        _call("capset", data)


def _capabilities() -> "ctypes.Array[_Data]":
    data = (_Data * 2)()
    _call("capget", data)
    return data


def _call(name: str, data: "ctypes.Array[_Data]") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(ctypes.byref(_Header(VERSION, 0)), data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
