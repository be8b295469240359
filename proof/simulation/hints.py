"""Hints between processes: lost, late, doubled and out of order. Within a process, hints are delivered as in
production."""

from holdfast.events.ids import Key
from holdfast.live.live import Changed, Hint
from holdfast.live.local import LocalLive
from proof.simulation.world import Machine, World


class Network:
    """The bus that joins the processes of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._joined: list[tuple[Machine, SimulatedLive]] = []

    def join(self, machine: Machine) -> "SimulatedLive":
        live = SimulatedLive(self, machine)
        self._joined.append((machine, live))
        return live

    def carry(self, sender: Machine, key: Key, hint: Hint) -> None:
        world = self._world
        self._joined = [(machine, live) for machine, live in self._joined if machine.state != "dead"]
        for machine, live in self._joined:
            if machine is sender or world.chance.random() < world.weather.losing:
                continue
            for _ in range(2 if world.chance.random() < world.weather.doubling else 1):
                delay = world.chance.random() * world.weather.delaying
                world.loop.call_later(delay, live.arrived, key, hint, context=machine.context)


class SimulatedLive(LocalLive):
    """A process's own hints go to its own listeners at once, and to the others as the network pleases."""

    def __init__(self, network: Network, machine: Machine) -> None:
        super().__init__()
        self._network = network
        self._machine = machine

    def publish(self, key: Key, hint: Hint) -> None:
        super().publish(key, hint)
        if not (isinstance(hint, Changed) and hint.promoted):
            self._network.carry(self._machine, key, hint)

    def arrived(self, key: Key, hint: Hint) -> None:
        """From another process."""
        self.offer(key, hint)
        if isinstance(hint, Changed):
            self.wake(key, hint.tail)
