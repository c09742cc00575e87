"""What a mutant is, and the hunt for a seed that notices it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.schedule import Outcome, run_seed

Apply = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One guard. `without`: what is done instead; `apply` patches it in, for as long as its argument is open; `only`:
    the kinds of faults, deeds and rules that the hunt draws from, for it to be short (none: all)."""

    guard: str
    without: str
    apply: Apply
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catch:
    """The first seed that noticed, how many were tried, and what it saw."""

    outcome: Outcome
    tried: int


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Without the guard, while this lasts."""
    with ExitStack() as undo:
        mutation.apply(undo)
        yield


def hunt(mutation: Mutation, seeds: Iterable[int]) -> Catch | None:
    """Run the mutant under each of `seeds` until a promise is broken; None: none was."""
    with mutated(mutation):
        for tried, seed in enumerate(seeds, 1):
            outcome = run_seed(seed, mutation.only)
            if outcome.violations:
                return Catch(outcome, tried)
    return None


def swap(undo: ExitStack, owner: Any, name: str, new: Any) -> Any:
    """Patch, and give what was there before."""
    old = getattr(owner, name)
    undo.enter_context(patch.object(owner, name, new))
    return old
