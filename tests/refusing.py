"""Runs a command in a kernel that refuses it some system calls, as in a container without privileges.

python -m tests.refusing namespaces guards -- python -m trainers.launch ...
"""

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": {"unshare": 272, "setsockopt": 54}, "aarch64": {"unshare": 97, "setsockopt": 208}}
LOAD, IS, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0001  # the latter with EPERM
NUMBER, OPTION = 0, 32  # where the kernel lays a call's number and its third argument
SO_REUSEPORT = 15
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2


def refuse(*, namespaces: bool = False, guards: bool = False) -> None:
    """Forbids this process and its children to make a namespace, or share a port."""
    calls = NUMBERS[platform.machine()]
    program = []
    if namespaces:
        program += [(LOAD, 0, 0, NUMBER), (IS, 0, 1, calls["unshare"]), (RETURN, 0, 0, REFUSE)]
    if guards:
        program += [(LOAD, 0, 0, NUMBER), (IS, 0, 3, calls["setsockopt"])]
        program += [(LOAD, 0, 0, OPTION), (IS, 0, 1, SO_REUSEPORT), (RETURN, 0, 0, REFUSE)]
    program += [(RETURN, 0, 0, ALLOW)]
    content = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    whole = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(content)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, whole)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses to refuse")


if __name__ == "__main__":
    place = sys.argv.index("--")
    refuse(**dict.fromkeys(sys.argv[1:place], True))
    os.execvp(sys.argv[place + 1], sys.argv[place + 1 :])
