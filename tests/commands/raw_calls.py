"""Makes system calls and prints what each returns: 0, or the name of its error. It runs in sandboxes, where nothing of
this repository can be imported.

python raw_calls.py CALL…    A call is its number and its arguments, with commas; an argument with an @ is a text.
"""

import ctypes
import errno
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def argument(word: str) -> "ctypes.c_char_p | ctypes.c_ulong":
    return ctypes.c_char_p(word[1:].encode()) if word.startswith("@") else ctypes.c_ulong(int(word))


for call in sys.argv[1:]:
    returned = libc.syscall(*(argument(word) for word in call.split(",")))
    print(0 if returned >= 0 else errno.errorcode[ctypes.get_errno()])
