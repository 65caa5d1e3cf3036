"""Find out that a replica hangs: it lives, and answers nothing (stopped, stuck in a system call).

Invariant: what counts are questions in a row without an answer, not time. So a machine that was
suspended, whose clock jumps, costs one question and no replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

EVERY_S = 2.0
"""Between two questions."""
ANSWER_S = 8.0
"""Of a question. A replica answers in milliseconds, since no request holds its loop for longer.

Below ``forwarding.CONNECT_S``: one with a full backlog counts as silent, not as gone.
"""
QUESTIONS = 3
"""Together with the pauses 30 s: a driver gives a call of the admin API 60 s, so one that waits for
the replica that hangs (a pause before new weights) ends well.
"""


async def wait_until_hung(ask: Callable[[], Awaitable[object]]) -> None:
    """Return when ``QUESTIONS`` in a row got no answer; a replica that is gone is another's case.

    ``ask`` returns when it is answered, and may raise ConnectionError.
    """
    unanswered = 0
    while unanswered < QUESTIONS:
        await asyncio.sleep(EVERY_S)
        try:
            async with asyncio.timeout(ANSWER_S):
                await ask()
        except TimeoutError:
            unanswered += 1
        except ConnectionError:
            unanswered = 0
        else:
            unanswered = 0
