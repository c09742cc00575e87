"""Shares of partitions: every table leads, by each worker's own decisions, to a fair one, and then nothing moves."""

from hypothesis import given
from hypothesis import strategies as st

from streams.fence.port import HeldBy, WorkerRow
from streams.runtime.balance import CUT_OFF_MS, STEADY_MS, Moves, View, moves


class Cluster:
    """Workers that decide one after the other, each on the table as it is then."""

    def __init__(self, partitions: int, holders: dict[int, str], workers: list[str]) -> None:
        self.partitions = partitions
        self.holders = {p: w for p, w in holders.items() if p < partitions and w in workers}
        self.workers = workers
        self.reaching: dict[str, int | None] = {}
        self.cut_off_ms = CUT_OFF_MS
        self.stopped: frozenset[int] = frozenset()

    def view(self, me: str, draining: frozenset[str] = frozenset()) -> View:
        rows = [
            WorkerRow(name, live=True, draining=name in draining, reaches_kafka_ms=self.reaching.get(name, STEADY_MS))
            for name in self.workers
        ]
        table = [
            HeldBy(p, w, 1, live=True, expires_in_ms=1, stopped=p in self.stopped)
            for p, w in sorted(self.holders.items())
        ]
        mine = frozenset(p for p, w in self.holders.items() if w == me)
        cut_off_ms = 0 if self.reaching.get(me, STEADY_MS) is not None else self.cut_off_ms
        return View(me, mine, frozenset(), rows, table, self.partitions, cut_off_ms)

    def round(self) -> int:
        moved = 0
        for me in self.workers:
            plan = moves(self.view(me))
            for partition in plan.hand_back:
                del self.holders[partition]
            for partition in plan.claim:
                assert partition not in self.holders
                self.holders[partition] = me
            moved += len(plan.hand_back) + len(plan.claim)
        return moved

    def counts(self) -> list[int]:
        return sorted(list(self.holders.values()).count(name) for name in self.workers)


NAMES = [f"wk-{n}" for n in range(6)]
clusters = st.builds(
    Cluster,
    st.integers(1, 20),
    st.dictionaries(st.integers(0, 19), st.sampled_from(NAMES)),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
)


@given(clusters)
def test_any_table_becomes_fair_and_stays(cluster: Cluster) -> None:
    for _ in range(10):
        if not cluster.round():
            break
    assert cluster.round() == 0
    assert len(cluster.holders) == cluster.partitions
    counts = cluster.counts()
    assert counts[-1] - counts[0] <= 1


@given(clusters)
def test_only_surplus_is_handed_back(cluster: Cluster) -> None:
    share = -(-cluster.partitions // len(cluster.workers))
    for me in cluster.workers:
        view = cluster.view(me)
        plan = moves(view)
        assert set(plan.hand_back) <= view.mine
        assert len(view.mine) - len(plan.hand_back) >= min(len(view.mine), share - 1)


def test_a_third_worker_gets_its_share() -> None:
    cluster = Cluster(8, {p: NAMES[p % 2] for p in range(8)}, NAMES[:2])
    assert cluster.round() == 0
    cluster.workers = NAMES[:3]
    cluster.round()
    cluster.round()
    assert cluster.counts() == [2, 3, 3]


def test_a_newcomer_gets_one_although_nobody_is_above_the_rounded_share() -> None:
    cluster = Cluster(4, {0: "wk-0", 1: "wk-0", 2: "wk-1", 3: "wk-1"}, NAMES[:3])
    cluster.round()
    cluster.round()
    assert cluster.counts() == [1, 1, 2]


def test_a_draining_worker_counts_for_no_share() -> None:
    cluster = Cluster(4, {0: "wk-1", 1: "wk-1"}, NAMES[:2])
    assert len(moves(cluster.view("wk-0", draining=frozenset({"wk-1"}))).claim) == 2


def test_dead_workers_rows_are_claimed() -> None:
    view = View(
        "wk-0",
        frozenset(),
        frozenset(),
        [WorkerRow("wk-0", live=True, draining=False), WorkerRow("wk-1", live=False, draining=False)],
        [HeldBy(0, "wk-1", 3, live=False, expires_in_ms=9_000), HeldBy(1, "wk-1", 3, live=False, expires_in_ms=9_000)],
        2,
    )
    assert sorted(moves(view).claim) == [0, 1]


def test_what_is_being_given_up_counts_no_more_and_is_not_claimed_again() -> None:
    cluster = Cluster(4, dict.fromkeys(range(4), "wk-0"), NAMES[:2])
    view = cluster.view("wk-0")
    plan = moves(View("wk-0", view.mine, frozenset({2, 3}), view.workers, view.table, 4))
    assert plan.claim == plan.hand_back == ()


# ---------------------------------------------------------------------------------------------- who reaches Kafka
def halves() -> Cluster:
    return Cluster(4, {0: "wk-0", 1: "wk-0", 2: "wk-1", 3: "wk-1"}, NAMES[:2])


def test_a_worker_that_is_cut_off_from_kafka_hands_over_to_one_that_is_not() -> None:
    cluster = halves()
    cluster.reaching["wk-0"] = None
    cluster.cut_off_ms = CUT_OFF_MS - 1
    assert cluster.round() == 0, "the other one may be about to find out the same"
    cluster.cut_off_ms = CUT_OFF_MS
    cluster.round()
    assert set(cluster.holders.values()) == {"wk-1"}
    assert len(cluster.holders) == 4
    assert cluster.round() == 0


def test_where_nobody_reaches_kafka_nothing_moves_and_neither_when_it_is_back() -> None:
    cluster = halves()
    cluster.reaching = {"wk-0": None, "wk-1": None}
    assert cluster.round() == 0
    # They find out one after the other.
    for reached in ({"wk-0": 0}, {"wk-1": 0}, {"wk-0": STEADY_MS}, {"wk-1": STEADY_MS}):
        cluster.reaching |= reached
        assert cluster.round() == 0


def test_where_nobody_reaches_all_of_kafka_a_dead_workers_partitions_are_taken_over_all_the_same() -> None:
    """A single partition without a leader keeps everybody's question from being answered."""
    cluster = Cluster(4, {0: "wk-0", 1: "wk-0"}, NAMES[:2])
    cluster.reaching = {"wk-0": None, "wk-1": None}
    cluster.round()
    assert cluster.counts() == [2, 2]


def test_a_worker_that_reaches_kafka_again_gets_its_share_once_it_has_for_long() -> None:
    cluster = Cluster(4, dict.fromkeys(range(4), "wk-1"), NAMES[:2])
    cluster.reaching["wk-0"] = STEADY_MS - 1
    assert cluster.round() == 0
    cluster.reaching["wk-0"] = STEADY_MS
    cluster.round()
    cluster.round()
    assert cluster.counts() == [2, 2]


@given(clusters, st.dictionaries(st.sampled_from(NAMES), st.sampled_from([None, 0, STEADY_MS])))
def test_wherever_kafka_is_reached_from_moves_end_and_every_partition_goes_to_who_reaches_it(
    cluster: Cluster, reaching: dict[str, int | None]
) -> None:
    cluster.reaching = reaching
    for _ in range(10):
        if not cluster.round():
            break
    assert cluster.round() == 0
    steady = [name for name in cluster.workers if reaching.get(name, STEADY_MS) == STEADY_MS]
    if steady:
        # Those that reach it again may still hold what they never gave up.
        assert all(reaching.get(holder, STEADY_MS) is not None for holder in cluster.holders.values())
        assert len(cluster.holders) == cluster.partitions


# --------------------------------------------------------------------------------------- stopped, and lost answers
def test_a_stopped_partition_counts_for_no_share_and_stays_where_it_is() -> None:
    cluster = Cluster(6, dict.fromkeys(range(6), "wk-0"), NAMES[:2])
    cluster.stopped = frozenset({4, 5})
    cluster.round()
    cluster.round()
    holders = [cluster.holders[p] for p in range(4)]
    assert (holders.count("wk-0"), holders.count("wk-1")) == (2, 2)
    assert cluster.holders[4] == cluster.holders[5] == "wk-0"


def test_a_live_lease_of_its_own_that_nothing_runs_is_taken_up_again() -> None:
    cluster = halves()
    view = cluster.view("wk-0")
    lost = View("wk-0", frozenset({0}), frozenset(), view.workers, view.table, 4)
    assert moves(lost) == Moves(resume=(1,))
