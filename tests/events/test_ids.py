"""New ids: random UUIDs, from a supply that no other process shares."""

import subprocess
import sys
import threading
import uuid

from holdfast.events.ids import random_id


def test_id_is_a_random_uuid_in_the_usual_notation() -> None:
    for _ in range(200):
        made = random_id()
        parsed = uuid.UUID(made)
        assert str(parsed) == made
        assert parsed.version == 4
        assert parsed.variant == uuid.RFC_4122


def test_ids_are_unique_across_threads() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(random_id() for _ in range(5_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 20_000


FORK = """
import os
from holdfast.events.ids import random_id

random_id()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*(random_id() for _ in range(100)), flush=True)
"""


def test_forked_process_makes_different_ids() -> None:
    """The fork happens in a process without threads, where forking is safe."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 200
