"""The process that runs the commands of one data directory: `python -m holdfast.commands.supervisor FOLDER`.

The started process is only a launcher. It returns once a supervisor listens, be it its child or another process's. The
child runs on in a session of its own: it belongs to no runtime and no terminal. A file lock, which the system releases
however the holder dies, allows one supervisor per folder.
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
"""Poll interval of the launcher while another process's supervisor starts."""


def main() -> int:
    # Some event loops leave inherited descriptors open in a child, and the supervisor and all commands would keep them
    # open.
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
            print(f"a supervisor holds the lock in {root} but does not listen; its pid is in {LOCK}", file=sys.stderr)
            return 1
        time.sleep(LOOK_SECONDS)
    return 0


def _locked(root: Path) -> int | None:
    """Takes the lock. Returns None if another supervisor has it: one that runs, starts, or is about to end."""
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
    """Forks the supervisor. The child shares the lock, and keeps it when the launcher ends."""
    ready, signal_ready = os.pipe()
    if os.fork():
        os.close(signal_ready)
        return 0 if os.read(ready, 1) else 1
    os.close(ready)
    try:
        os.setsid()
        # The pid is for people and tests. The system itself knows which process holds the lock.
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        _serve(root, lock, signal_ready, umask, settings)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _serve(root: Path, lock: int, signal_ready: int, umask: int, settings: SupervisorSettings) -> None:
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
    # A socket found here is a dead supervisor's: this process has the lock.
    (root / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address(root))
        ours[SOCKET] = os.stat(root / SOCKET)
        listener.listen(128)
        listener.setblocking(False)
        service.listen(listener)
        os.write(signal_ready, b"\n")
        os.close(signal_ready)
        _detach_from_launcher(root)
        loop.run()
        # A client that connects from here on finds no socket and starts another supervisor, which waits for the lock.
        if _is_there(root / SOCKET, ours[SOCKET]):
            (root / SOCKET).unlink(missing_ok=True)


def _is_at_home(root: Path, ours: dict[str, os.stat_result]) -> bool:
    """Whether clients still find this supervisor's socket or lock file: then no other supervisor can serve the
    folder."""
    return any(_is_there(root / name, file) for name, file in ours.items())


def _is_there(path: Path, file: os.stat_result) -> bool:
    """Returns False if the file was removed or replaced. A file that can't be read may come back, so it counts as
    present."""
    try:
        return os.path.samestat(os.stat(path), file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _detach_from_launcher(root: Path) -> None:
    """Sends stdout and stderr to the log: the runtime that started the launcher reads its pipes to their end."""
    path = root / "supervisor.log"
    too_long = path.exists() and path.stat().st_size > LOG_BYTES
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if too_long else 0), 0o600)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, descriptor in enumerate((nothing, log, log)):
        os.dup2(descriptor, number)
    os.chdir("/")


def _raise_file_limit() -> tuple[int, int]:
    """Raises the limit on open files, since each command needs a few descriptors. Returns the original limit, which
    commands get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft, hard


if __name__ == "__main__":
    sys.exit(main())
