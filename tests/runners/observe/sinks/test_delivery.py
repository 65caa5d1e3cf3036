"""Entries reach a service in order; whatever it does, the caller is neither held up nor failed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from runners.observe.sinks.delivery import Delivery, Ending, EntryRefused

QUICK = (0.0,)


@dataclass
class Service:
    """A service that fails as it is told."""

    fails: int = 0
    """Tries that fail before one succeeds."""
    refused: frozenset[int] = frozenset()
    hangs: threading.Event | None = None
    """It answers nothing until this is set."""
    got: list[int] = field(default_factory=list)
    opened: int = 0
    ended: list[Ending] = field(default_factory=list)

    def open(self) -> None:
        self.opened += 1

    def take(self, entry: int) -> None:
        if self.hangs is not None:
            self.hangs.wait()
        if entry in self.refused:
            raise EntryRefused("such a name")
        if self.fails:
            self.fails -= 1
            raise ConnectionError("nobody listens")
        self.got.append(entry)

    def close(self, ending: Ending) -> None:
        self.ended.append(ending)


def test_a_service_that_was_away_gets_everything_in_order_and_one_warning_is_given() -> None:
    service, told = Service(fails=7), list[str]()
    delivery = Delivery("there", service, told.append, pauses_s=QUICK)
    for entry in range(50):
        delivery.add(entry)
    while len(service.got) < 50:
        threading.Event().wait(0.001)
    assert delivery.close(Ending.FINISHED) == ""
    assert service.got == list(range(50))
    assert (service.opened, service.ended) == (1, [Ending.FINISHED])
    assert told == ["there fails, the run goes on: ConnectionError: nobody listens"]


def test_what_is_refused_is_counted_and_not_sent_again() -> None:
    service, told = Service(refused=frozenset({1, 3})), list[str]()
    delivery = Delivery("there", service, told.append, pauses_s=QUICK)
    for entry in range(5):
        delivery.add(entry)
    assert delivery.close(Ending.STOPPED) == "there: 2 entries were not delivered"
    assert service.got == [0, 2, 4]
    assert service.ended == [Ending.STOPPED]
    assert len(told) == 1


def test_a_service_that_hangs_holds_up_nobody_and_costs_the_oldest_entries() -> None:
    service = Service(hangs=threading.Event())
    delivery = Delivery("there", service, lambda text: None, most=10, pauses_s=QUICK)
    for entry in range(100):  # returns at once, though nothing is taken
        delivery.add(entry)
    assert (
        delivery.close(Ending.FINISHED, deadline_s=0.05) == "there: 100 entries were not delivered"
    )
    assert service.hangs is not None
    service.hangs.set()
    delivery.close(Ending.FINISHED)
    # the one in flight when newer ones came is sent all the same, and then it is not lost
    assert [entry for entry in service.got if entry >= 90] == list(range(90, 100))
    assert delivery.lost == 100 - len(service.got) >= 89


def test_a_service_that_is_down_at_the_end_is_tried_once_more() -> None:
    service = Service(fails=10**9)
    delivery = Delivery("there", service, lambda text: None, pauses_s=(1000.0,))
    delivery.add(1)
    while service.fails == 10**9:
        threading.Event().wait(0.001)
    assert delivery.close(Ending.FINISHED) == "there: 1 entries were not delivered"
    assert service.fails == 10**9 - 2
    assert service.ended == [Ending.FINISHED]
