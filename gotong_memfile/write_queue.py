"""The queue of one owner's writers: first come, first served, and appends that wait are written together.

The thread at the head is the leader. It takes the appends that wait directly behind it along in one write
(group commit), hands each its result, and wakes the next. Whoever needs the owner for himself waits for his
turn and works alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

_LARGEST_GROUP: Final = 256
"""How many appends share a write: enough for any number of threads, and a bound on what a leader waits."""


class Commit:
    """Whether a write is done that several turns share: one flag, so that an interrupt finds all of them
    done or none.
    """

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class Turn(Generic[Request, Result]):
    """One caller's place in the queue.

    A turn is *settled* once its commit is done or it has an error; it is *taken* from when another turn leads
    it until it is settled or left to itself, and *abandoned* when its caller was interrupted and nobody waits
    for it any more.
    """

    __slots__ = ("_commit", "abandoned", "error", "request", "result", "taken", "wake")

    def __init__(self, request: Request | None) -> None:
        self.request = request
        self.result: Result | None = None
        self.error: Exception | None = None
        self._commit: Commit | None = None
        self.taken = False
        self.abandoned = False
        self.wake: threading.Lock | None = None

    @property
    def settled(self) -> bool:
        """Whether the caller can be told how it went."""
        return self.error is not None or (self._commit is not None and self._commit.done)

    def promise(self, result: Result, commit: Commit) -> None:
        """Settle the turn with a result as soon as `commit` is done."""
        self.result, self._commit = result, commit

    def fail(self, error: Exception) -> None:
        """Settle the turn with an error, which its caller raises."""
        self.error = error


class WriteQueue(Generic[Request, Result]):
    """Orders the writers of one owner in this process.

    `commit` is called by the leader with turns that `joinable` lets share a write, its own first; it settles
    each. What it raises is the leader's own error: turns that are not settled then stay in the queue, and
    the next of them leads. `costly` tells that the commit of a request takes so long that its leader waits
    for those that shared the last one: they are on their way with their next, and would miss it narrowly.

    Invariants:
    - `_turns` are in order of arrival. The first one leads: nobody else works.
    - A turn leaves `_turns` by its own caller when it leads or was interrupted, or by the leader that
      settled it; what is left behind the first is asleep, or about to be.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Turn[Request, Result]]], None],
        joinable: Callable[[Request, Request], bool],
        costly: Callable[[Request], bool],
    ) -> None:
        self._commit = commit
        self._joinable = joinable
        self._costly = costly
        # Of the last commit that was costly: how many shared it, and how long it took, in seconds.
        self._company, self._took = 1, 0.0
        self._lock = threading.Lock()
        self._turns: deque[Turn[Request, Result]] = deque()

    @property
    def busy(self) -> bool:
        """Whether anybody writes or waits to."""
        return bool(self._turns)

    def submit(self, request: Request) -> Result:
        """Wait until `request` was committed, by this thread or by a leader before it; its result.

        A caller that is interrupted while it waits leaves the queue; when a leader was at work on its
        request already, that may be done all the same.
        """
        turn: Turn[Request, Result] = Turn(request)
        try:
            self._arrive(turn)
            if turn.wake is None or not turn.settled:
                self._lead(turn, request)
        finally:
            try:
                self._leave(turn)
            except BaseException:
                self._leave(turn)
                raise
        if turn.error is not None:
            # The error's traceback leads to the turn: a way back would keep open what its frames hold.
            error, turn.error = turn.error, None
            try:
                raise error
            finally:
                del error
        assert turn.settled, "a commit settles each of its turns, or raises"  # noqa: S101
        result: Result = turn.result  # type: ignore[assignment]
        return result

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one at work for the `with` block."""
        turn: Turn[Request, Result] = Turn(None)
        try:
            self._arrive(turn)
            yield
        finally:
            try:
                self._leave(turn)
            except BaseException:
                self._leave(turn)
                raise

    def _arrive(self, turn: Turn[Request, Result]) -> None:
        """Returns when the turn leads, or when a leader has settled it."""
        with self._lock:
            if self._turns:
                turn.wake = threading.Lock()
                turn.wake.acquire()
            self._turns.append(turn)
            if len(self._turns) == self._company:
                _wake(self._turns[0])
        if turn.wake is not None:
            turn.wake.acquire()

    def _lead(self, turn: Turn[Request, Result], request: Request) -> None:
        if not self._costly(request):
            self._commit(self._gather(turn, request))
            return
        self._await_company(turn)
        group = self._gather(turn, request)
        self._company = len(group)
        started = time.perf_counter()
        self._commit(group)
        self._took = time.perf_counter() - started

    def _await_company(self, leader: Turn[Request, Result]) -> None:
        """Wait until as many are there as shared the last write, but no longer than that took: so that who
        waits in vain takes twice as long at worst, and once, for then fewer are waited for.
        """
        with self._lock:
            if len(self._turns) >= self._company:
                return
            if leader.wake is None:
                leader.wake = threading.Lock()
                leader.wake.acquire()
        leader.wake.acquire(timeout=self._took)

    def _gather(self, leader: Turn[Request, Result], request: Request) -> list[Turn[Request, Result]]:
        """The leader's turn and those behind it that may share its write."""
        if len(self._turns) == 1:
            return [leader]
        group = [leader]
        with self._lock:
            for turn in islice(self._turns, 1, _LARGEST_GROUP):
                if turn.request is None or not self._joinable(request, turn.request):
                    break
                turn.taken = True
                group.append(turn)
        return group

    def _leave(self, turn: Turn[Request, Result]) -> None:
        """End the turn, in whatever state an error or interrupt has left it, and wake who comes next.

        When this is interrupted itself, it must be called again.
        """
        if turn.taken and turn.settled:
            return  # a leader has it out of the queue, or will
        with self._lock:
            if self._turns and self._turns[0] is turn:
                if len(self._turns) > 1:
                    self._release_group(turn)
                else:
                    self._turns.popleft()
            elif turn in self._turns:
                turn.abandoned = True
                if not turn.taken:
                    self._turns.remove(turn)
            if self._turns:
                _wake(self._turns[0])

    def _release_group(self, leader: Turn[Request, Result]) -> None:
        """Wake whose request is settled, and leave the others in the queue; all of that again, or nothing,
        when it is interrupted and called again.
        """
        left: deque[Turn[Request, Result]] = deque()
        for turn in self._turns:
            if turn.taken and turn.settled:
                _wake(turn)
            elif turn is not leader and not turn.abandoned:
                turn.taken = False
                left.append(turn)
        self._turns = left


def _wake(turn: Turn[Request, Result]) -> None:
    if turn.wake is not None and turn.wake.locked():
        turn.wake.release()
