"""The mutation gate: without any one of its guards the design breaks a promise, and the simulation notices."""

from __future__ import annotations

import pytest

from tests.simulation.mutation import Mutation, hunt
from tests.simulation.mutations import MUTATIONS
from tests.simulation.schedule import run_seed

HUNTED = range(400)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_no_guard_can_be_taken_away_unnoticed(mutation: Mutation) -> None:
    catch = hunt(mutation, HUNTED)
    assert catch is not None, f"without '{mutation.guard}' ({mutation.without}) every promise was kept"
    own = [sign for sign in catch.outcome.violations if "unexpected error" in sign]
    assert not own, f"the mutant fails by itself, whatever the guard is for: {own[0]}"
    with_guard = run_seed(catch.outcome.seed, mutation.only)
    assert not with_guard.violations, "the same schedule breaks it with the guard in place"
