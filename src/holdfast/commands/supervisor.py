"""The process that runs the commands of one data directory: `python -m holdfast.commands.supervisor FOLDER`.

What is started is only the launcher. It returns once a supervisor listens, its own child or another's, and the child
goes on in a session of its own: it belongs to no runtime and to no terminal. There is one for each folder, by a lock
that the system lets go of however the holder dies.
"""

import fcntl
import os
import resource
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Final

import msgspec

from holdfast.commands.address import SOCKET, address
from holdfast.commands.execution import Inherited
from holdfast.commands.folder import KEYS
from holdfast.commands.loop import SupervisorLoop
from holdfast.commands.processes import become_subreaper
from holdfast.commands.service import SupervisorService, SupervisorSettings

LOCK: Final = "supervisor.lock"
LOG_BYTES: Final = 1_000_000
LAUNCH_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
"""How often the launcher looks whether another one's supervisor listens by now."""


def main() -> int:
    # Not every event loop closes what a child should not have, and we, and all commands, would keep it open for long.
    os.closerange(3, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))
    root = Path(sys.argv[1])
    settings = msgspec.json.decode(sys.argv[2], type=SupervisorSettings) if len(sys.argv) > 2 else SupervisorSettings()
    umask = os.umask(0o077)
    (root / KEYS).mkdir(mode=0o700, parents=True, exist_ok=True)
    root.chmod(0o700)
    deadline = time.monotonic() + LAUNCH_SECONDS
    while not _listens(root):
        if (lock := _locked(root)) is not None:
            return _launch(root, lock, umask, settings)
        if time.monotonic() > deadline:
            print(f"a supervisor holds the lock in {root}, but does not listen", file=sys.stderr)
            return 1
        time.sleep(LOOK_SECONDS)
    return 0


def _locked(root: Path) -> int | None:
    """The lock, or None if somebody has it: a supervisor that lives, begins, or is about to end."""
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _listens(root: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(address(root))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _launch(root: Path, lock: int, umask: int, settings: SupervisorSettings) -> int:
    """The child shares the lock, and keeps it when we end."""
    told, telling = os.pipe()
    if os.fork():
        os.close(telling)
        return 0 if os.read(told, 1) else 1
    os.close(told)
    try:
        os.setsid()
        # For people, and for tests: who holds the lock is known to the system.
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        _serve(root, lock, telling, umask, settings)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _serve(root: Path, lock: int, telling: int, umask: int, settings: SupervisorSettings) -> None:
    files = _raise_file_limit()
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    loop = SupervisorLoop()
    inherited = Inherited(umask=umask, files=files)
    ours = {LOCK: os.fstat(lock)}
    service = SupervisorService(root, loop, inherited, settings, is_at_home=lambda: _is_at_home(root, ours))
    loop.on_signal(signal.SIGCHLD, service.reap)
    loop.on_signal(signal.SIGTERM, service.close_when_done)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        loop.on_signal(number, lambda: None)
    service.recover()
    # Whatever lies there is a dead one's: we have the lock.
    (root / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address(root))
        ours[SOCKET] = os.stat(root / SOCKET)
        listener.listen(128)
        listener.setblocking(False)
        service.listen(listener)
        os.write(telling, b"\n")
        os.close(telling)
        _forget_the_launcher(root)
        loop.run()
        # Who connects from here on finds nobody, and starts another, which waits for our lock.
        if _is_there(root / SOCKET, ours[SOCKET]):
            (root / SOCKET).unlink(missing_ok=True)


def _is_at_home(root: Path, ours: dict[str, os.stat_result]) -> bool:
    """As long as others find our socket, or can't take the lock, there can be nobody else."""
    return any(_is_there(root / name, file) for name, file in ours.items())


def _is_there(path: Path, file: os.stat_result) -> bool:
    """False if it was removed, or is another one by now. One that can't be looked at may come back."""
    try:
        return os.path.samestat(os.stat(path), file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _forget_the_launcher(root: Path) -> None:
    """The launcher's outputs are read to their end by whoever started it."""
    path = root / "supervisor.log"
    too_long = path.exists() and path.stat().st_size > LOG_BYTES
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if too_long else 0), 0o600)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, descriptor in enumerate((nothing, log, log)):
        os.dup2(descriptor, number)
    os.chdir("/")


def _raise_file_limit() -> tuple[int, int]:
    """Each command takes a few descriptors of ours. Returns the limit that commands are to have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft, hard


if __name__ == "__main__":
    sys.exit(main())
