"""The queue of one owner's writers: first come, first served, and appends that wait are written together.

The thread at the head is the leader. It takes the appends that wait directly behind it along in one write
(group commit), hands each its result, and wakes the next. Whoever needs the owner for himself waits for his
turn and works alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

    A turn is *settled* once its commit is done or it has an error; it is *taken* while a leader works on
    it, and *abandoned* when its caller was interrupted and nobody waits for it any more.
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
    the next of them leads.

    Invariants:
    - `_turns` are in order of arrival. The first one leads: nobody else works.
    - A turn leaves `_turns` by its own caller when it leads or was interrupted, or by the leader that
      settled it; what is left behind the first is asleep, or about to be.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Turn[Request, Result]]], None],
        joinable: Callable[[Request, Request], bool],
    ) -> None:
        self._commit = commit
        self._joinable = joinable
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
                self._commit(self._gather(turn))
        finally:
            self._leave(turn)
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
            self._leave(turn)

    def _arrive(self, turn: Turn[Request, Result]) -> None:
        """Returns when the turn leads, or when a leader has settled it."""
        with self._lock:
            if self._turns:
                turn.wake = threading.Lock()
                turn.wake.acquire()
            self._turns.append(turn)
        if turn.wake is not None:
            turn.wake.acquire()

    def _gather(self, leader: Turn[Request, Result]) -> list[Turn[Request, Result]]:
        """The leader's turn and those behind it that may share its write."""
        if len(self._turns) == 1:
            return [leader]
        group: list[Turn[Request, Result]] = []
        with self._lock:
            for turn in self._turns:
                together = turn is leader or (
                    (turn.request is not None and leader.request is not None)
                    and self._joinable(leader.request, turn.request)
                )
                if not together or len(group) == _LARGEST_GROUP:
                    break
                turn.taken = True
                group.append(turn)
        return group

    def _leave(self, turn: Turn[Request, Result]) -> None:
        """End the turn, in whatever state an error or interrupt has left it, and wake who comes next."""
        with self._lock:
            leads = bool(self._turns) and self._turns[0] is turn
            if not leads:
                if turn in self._turns:  # else a leader has settled it
                    turn.abandoned = True
                    if not turn.taken:
                        self._turns.remove(turn)
                return
            self._turns.popleft()
            if not self._turns:
                return
            followers = []
            while self._turns and self._turns[0].taken:
                followers.append(self._turns.popleft())
            for follower in followers:
                follower.taken = False
                if follower.settled:
                    _wake(follower)
            left = [follower for follower in followers if not follower.settled and not follower.abandoned]
            self._turns.extendleft(reversed(left))
            if self._turns:
                _wake(self._turns[0])


def _wake(turn: Turn[Request, Result]) -> None:
    if turn.wake is not None and turn.wake.locked():
        turn.wake.release()
