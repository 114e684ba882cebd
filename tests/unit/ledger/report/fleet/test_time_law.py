"""The law of a fleet's GPU time: books and a Prometheus that scraped them agree within the bound."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from builders import gpu
from gpuledger.ledger.report.fleet.account_rises import GPU_SECONDS
from gpuledger.ledger.report.usage_report import UsageReport
from time_helpers import UNIX, Has, Runs, Truth, pod
from unit.ledger.report.fleet.scrapes import ScrapedNode, booked, scraped_report
from unit.ledger.report.fleet.support import rows as rows_of

QUARTER = 900
HOURS = 2


def assert_agrees(
    node: ScrapedNode, begins: float, ends: float, now: float, restarts: int = 0
) -> UsageReport:
    """Assert that each row is within its bound of the books."""
    found = scraped_report(node, begins, ends, now)
    truth = booked(node.books, node.basis, begins, ends)
    rows = {key[-1]: line for key, line in rows_of(found).items()}
    for name, microseconds in truth.items():
        if name in ("unobserved", "down"):
            continue
        if name not in rows:
            # It began shortly before the end, or before a restart that lost what was not exported.
            hidden = (1 + restarts) * GPU_SECONDS.scrape_delay(node.interval) * 1_000_000
            unseen = rows["unseen"].gpu_microseconds or 0 if "unseen" in rows else 0
            assert microseconds <= hidden + unseen, name
            continue
        line = rows[name]
        assert line.time_bound is not None and line.gpu_microseconds is not None
        assert abs(line.gpu_microseconds - microseconds) <= line.time_bound + 2, name
    total = sum(amount for name, amount in truth.items() if name not in ("unobserved", "down"))
    assert abs((found.total.gpu_microseconds or 0) - total) <= (found.total.time_bound or 0) + len(truth)
    return found


lengths = st.sampled_from([5.0, 12.0, 31.0, 95.0, 400.0, 1800.0, 5000.0])


periods = st.tuples(st.integers(0, HOURS * 3600), st.sampled_from([20.0, 50.0, 200.0])).map(
    lambda pair: (float(pair[0]), pair[0] + pair[1])
)


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Several owners of one Gpu with jobs of 5 s to hours, some with a fraction of it.

    The program restarts, the process list fails, and the Gpu is lost for a while.
    """
    device = gpu(0)
    runs, has = [], []
    for number in range(draw(st.integers(1, 5))):
        begins = draw(st.integers(0, HOURS * 720 - 1)) * 5.0
        ends, owner = begins + draw(lengths), pod(f"p{number}")
        runs.append(Runs(owner, begins, ends))
        if draw(st.booleans()):
            fraction = draw(st.sampled_from([None, 1, 0.5, 0.25]))
            has.append(Has(owner, None if fraction is None else Fraction(fraction), begins, ends + 30))
    stops = sorted(draw(st.lists(st.integers(60, HOURS * 3600 - 60), max_size=2)))
    stopped = [(float(at), at + draw(st.sampled_from([3.0, 20.0, 400.0]))) for at in stops]
    unlisted = draw(st.lists(periods, max_size=2))
    lost = draw(st.lists(periods, max_size=1))
    return Truth(device, has, runs, unlisted=unlisted, lost=lost, stopped=stopped)


@pytest.mark.parametrize("interval", [15.0, 30.0, 60.0])
@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_books_and_prometheus_agree_within_the_bound(interval: float, data: st.DataObject) -> None:
    truth = data.draw(truths())
    basis = data.draw(st.sampled_from(["allocation", "residence"]))
    node = ScrapedNode(interval, data.draw(st.sampled_from([0.0, 5.0, 10.0])), basis)
    end = HOURS * 3600 + 600
    node.play(truth, (float(at) for at in range(0, end + 1, 5)))
    first = UNIX + QUARTER * data.draw(st.integers(1, 3))
    last = UNIX + QUARTER * data.draw(st.integers(4, 8))
    assert_agrees(node, first, last, UNIX + end, len(truth.stopped))


@pytest.mark.parametrize(("interval", "seconds"), [(15.0, 150), (30.0, 210), (60.0, 300)])
def test_the_bound_of_an_owner_that_goes_on_is_minutes(interval: float, seconds: int) -> None:
    node = ScrapedNode(interval, 5.0)
    node.play(Truth(gpu(0), runs=[Runs(pod("t"))]), (float(at) for at in range(0, 7801, 5)))
    found = assert_agrees(node, UNIX + QUARTER, UNIX + 7 * QUARTER, UNIX + 7800)
    (line,) = found.lines
    assert abs((line.gpu_microseconds or 0) - 5400 * 1_000_000) <= interval * 1_000_000
    assert seconds * 0.8 <= (line.time_bound or 0) / 1e6 <= seconds


def test_an_owner_that_began_and_ended_within_the_range_is_exact() -> None:
    node = ScrapedNode(15.0)
    shared = [Runs(pod("t"), 1500.0, 1535.0), Runs(pod("u"), 1510.0, 4000.0), Runs(pod("v"))]
    node.play(Truth(gpu(0), runs=shared), (float(at) for at in range(0, 7801, 5)))
    found = assert_agrees(node, UNIX + QUARTER, UNIX + 7 * QUARTER, UNIX + 7800)
    exact = {line.key[-1]: line.gpu_microseconds for line in found.lines if not line.time_bound}
    truth = booked(node.books, node.basis, UNIX + QUARTER, UNIX + 7 * QUARTER)
    assert exact == {"t": truth["t"], "u": truth["u"]}


def test_what_a_restart_lost_is_in_the_bound() -> None:
    """Counters in memory begin at 0: what the last scrape did not see is lost."""
    node = ScrapedNode(60.0)
    stops = [(2525.0, 2540.0), (2995.0, 3010.0)]
    truth = Truth(gpu(0), runs=[Runs(pod("t"), 1500.0, 4000.0)], stopped=stops)
    node.play(truth, (float(at) for at in range(0, 7801, 5)))
    found = assert_agrees(node, UNIX + QUARTER, UNIX + 7 * QUARTER, UNIX + 7800)
    (line,) = found.lines
    booked_time = booked(node.books, node.basis, UNIX + QUARTER, UNIX + 7 * QUARTER)["t"]
    assert (line.gpu_microseconds or 0) < booked_time
    assert line.time_bound
