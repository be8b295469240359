"""The measured process: `python -m bench.measure PROBE` reads a place from its input and prints what it measured.

A probe is a module with `measure`, and with `prepare` if all its runs share something that takes long to make.
"""

import gc
import importlib
import os
import sys

import msgspec

from bench.calibration import Speed
from bench.place import from_json
from holdfast import event_loop


def main(probe: str, verb: str) -> None:
    place = from_json(sys.stdin.buffer.read())
    if place.core is not None and verb == "measure":
        os.sched_setaffinity(0, {place.core})
    module = importlib.import_module(f"bench.probes.{probe}")
    if verb == "prepare":
        event_loop.run(module.prepare(place))
        return
    speed = Speed(place.folder, loops=place.size.calibration_loops, commits=place.size.raw_commits)
    speed.take()
    figures = event_loop.run(module.measure(place))
    gc.collect()
    speed.take()
    sys.stdout.buffer.write(msgspec.json.encode(speed.with_figures(figures)) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "measure")
