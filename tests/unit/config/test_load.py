"""Values from a configuration file, variables and flags: as written, and errors that name the place."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from gpuledger.config.commands import ALL_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.report.settings import Prices
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import SecondsWithoutUnit, build_settings, declared_settings
from gpuledger.sources.settings import SourceSettings


@pytest.mark.parametrize(
    ("flags", "environment", "marked"),
    [
        ({"interval": ["500"]}, {}, {"interval"}),
        ({}, {"GPULEDGER_INTERVAL": "500", "GPULEDGER_SLOW_INTERVAL": "61"}, {"interval", "slow_interval"}),
        ({"interval": ["500s"], "slow_interval": ["60"]}, {}, set()),
        # The flags and variables of other exporters keep their units: milliseconds.
        ({}, {"DCGM_EXPORTER_INTERVAL": "120000"}, set()),
        # Go durations, which have no unit to keep there.
        ({"nvidia_gpu_exporter.interval": ["500"]}, {}, {"nvidia_gpu_exporter.interval"}),
        ({"nvidia_gpu_exporter.timeout": ["10000"]}, {}, {"nvidia_gpu_exporter.timeout"}),
        ({"nvidia_gpu_exporter.timeout": ["10000ms"], "nvidia_gpu_exporter.interval": ["60"]}, {}, set()),
    ],
)
def test_long_durations_without_a_unit_are_marked(
    flags: dict[str, list[str]], environment: dict[str, str], marked: set[str]
) -> None:
    values = load_values(NODE_GROUPS.values(), flags, environment, None)
    assert {key for key, value in values.items() if isinstance(value, SecondsWithoutUnit)} == marked
    assert values.keys() & {"interval", "slow_interval", "nvidia_smi.timeout"}


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None, **flags: str) -> Prices:
    file = tmp_path / "gpuledger.yaml"
    file.write_text(text)
    given = {key.replace("__", "."): [value] for key, value in flags.items()}
    values = load_values([Prices], given, environment or {}, file)
    return build_settings(Prices, values)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("price: {kwh: 0.12345678901234567890123}", "0.12345678901234567890123"),
        ("price.kwh: 2.40", "2.40"),
        ("price: {kwh: '2.40'}", "2.40"),
        ("price: {kwh: 1_000}", "1000"),
        ("price: {kwh: 010}", "10"),
        ("base: &b {kwh: 3}\nprice: {<<: *b}", None),
        ("price: {<<: {kwh: 3.10}}", "3.10"),
        ("price: {kwh: &n 4, gpu_hour: *n}", "4"),
    ],
)
def test_a_number_of_a_file_is_read_as_it_is_written(tmp_path: Path, text: str, amount: str | None) -> None:
    if amount is None:
        with pytest.raises(UsageError, match="unknown key 'base'"):
            load(tmp_path, text)
    else:
        assert str(load(tmp_path, text).kwh) == amount


@pytest.mark.parametrize("text", ["price: {kwh: }", "price: {kwh: ~}", "price:", "price: {kwh: ''}", ""])
def test_an_empty_price_is_not_set(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text).kwh is None


LIST = """
price:
  gpu_hour:
    - {gpu: "*H100*", mig: 1g.*, from: 2026-01-01, until: 2026-07-01 08:00:00, price: 2.40, per: instance}
    - price: 1.00000000000000000001
co2: {g_per_kwh: [{node: 17, value: 380}]}
"""


def test_a_list_of_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    prices = load(tmp_path, LIST)
    assert isinstance(prices.gpu_hour, tuple)
    assert isinstance(prices.co2, tuple)
    assert [str(entry) for entry in (*prices.gpu_hour, *prices.co2)] == [
        "entry 1 (gpu *H100*, mig 1g.*, from 2026-01-01, until 2026-07-01T08:00, per instance, price 2.40)",
        "entry 2 (price 1.00000000000000000001)",
        "entry 1 (node 17, value 380)",
    ]


def test_a_variable_and_a_flag_take_a_list_as_json(tmp_path: Path) -> None:
    json = '[{"node": "a", "price": 0.300000000000000000001}]'
    from_variable = load(tmp_path, "price: {kwh: 1}", {"GPULEDGER_PRICE_KWH": json})
    assert isinstance(from_variable.kwh, tuple)
    assert from_variable.kwh[0].amount == Decimal("0.300000000000000000001")
    assert load(tmp_path, "", price__kwh=json) == from_variable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "price: {kwh: -1}",
            "price.kwh: expected a price of one kilowatt-hour of at least 0 and below 1000000000, such as "
            "0.32, not '-1'",
        ),
        ("price: {kwh: 1e9}", "of at least 0 and below 1000000000, such as 0.32, not '1e9'"),
        (
            "price: {gpu_hour: 2000000000}",
            "of at least 0 and below 1000000000, such as 1.20, not '2000000000'",
        ),
        ("price: {kwh: 1:30}", "price.kwh: expected a price of one kilowatt-hour"),
        ("price: {kwh: .inf}", "price.kwh: expected a price of one kilowatt-hour"),
        (
            "price: {kwh: {price: 1}}",
            "price.kwh: expected a price of one kilowatt-hour of at least 0 and below 1000000000, such as "
            "0.32, or a list",
        ),
        ("price: {gpu_hour: [{price: 1}, {price: x}]}", "price.gpu_hour: entry 2 (price x): price: expected"),
        ("price: {gpu_hour: [{price: 1, from: 2026-02-30}]}", "from: 2026-02-30 is not in the calendar"),
        ("price: {gpu_hour: [{price: 1, price: 2}]}", "price.gpu_hour[0].price is given twice"),
        ("price: {kwh: 1, kwh: 2}", "price.kwh is given twice"),
        ("price: {kwh: 1}\nprice: {gpu_hour: 1}", "price is given twice"),
        ("price: {kwh: 1}\nprice.kwh: 2", "price.kwh is given twice"),
    ],
)
def test_an_invalid_price_is_one_line_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path}/gpuledger.yaml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("price: {pue: 1.5}", "unknown key 'price.pue'; did you mean 'pue'?"),
        ("price.pue: 1.5", "unknown key 'price.pue'; did you mean 'pue'?"),
        ("price: {khw: 1}", "unknown key 'price.khw'; did you mean 'price.kwh'?"),
        ("prize: {kwh: 1}", "unknown key 'prize'; did you mean 'price'?"),
        # Not the section that the key is in.
        ("foo: 1", "unknown key 'foo'; valid: co2, price, pue"),
        ("price: {foo: 1}", "unknown key 'price.foo'; valid: price.basis, price.currency, price.gpu_hour, "),
        ("price.foo: 1", "unknown key 'price.foo'; valid: price.basis, price.currency, price.gpu_hour, "),
    ],
)
def test_an_unknown_key_names_the_right_one(tmp_path: Path, text: str, advice: str) -> None:
    with pytest.raises(UsageError) as error:
        load(tmp_path, text)
    assert advice in str(error.value)


def test_an_invalid_entry_is_named_without_the_rest_of_the_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load(tmp_path, "", price__kwh='[{"price": 1}, {"price": -1}]')
    assert str(error.value) == (
        "--price.kwh: entry 2 (price -1): price: expected a price of one kilowatt-hour of at least 0 and "
        "below 1000000000, such as 0.32, not -1"
    )


@pytest.mark.parametrize(
    ("key", "value"), [("price.basis", "resident"), ("price.idle", "spreads"), ("price.currency", "euro")]
)
def test_other_words_are_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{key}: expected"):
        load(tmp_path, f"{key}: {value}")


def test_the_defaults_are_the_allocation_basis_and_an_idle_row(tmp_path: Path) -> None:
    prices = load(tmp_path, "")
    assert (prices.basis, prices.idle) == ("allocation", "row")
    changed = load(tmp_path, "price: {basis: residence, idle: spread}")
    assert (changed.basis, changed.idle) == ("residence", "spread")


# A value that is meant: the default, or none.
NULL_MEANS_DEFAULT = frozenset(
    {
        *("amd.prefix", "co2.g_per_kwh", "energy.empty_watts", "energy.resident_watts", "price.gpu_hour"),
        *(
            "price.kwh",
            "pue",
            "report.every",
            "report.timezone",
            "teams",
            "tokens.gateways",
            "tokens.sources",
        ),
    }
)


def nested(key: str, depth: int) -> str:
    """A key in `depth` sections, with dots for the other ones."""
    parts = key.split(".")
    sections, rest = parts[:depth], ".".join(parts[depth:])
    return "".join(f"{one}: {{" for one in sections) + f"{rest}: X" + "}" * depth


DOTTED = [
    ("web.config.file", "web: {config: {file: X}, config.file: X}"),
    *(
        (item.key, f"{nested(item.key, depth)}\n{item.key}: X")
        for group in ALL_GROUPS
        for _, item, _ in declared_settings(group)
        for depth in range(1, item.key.count(".") + 1)
    ),
]


@pytest.mark.parametrize("order", [1, -1])
def test_a_key_in_its_section_and_with_a_dot_is_given_twice(order: int, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    assert len(DOTTED) > 100
    for key, text in DOTTED:
        file.write_text("\n".join(text.split("\n")[::order]))
        with pytest.raises(UsageError, match=re.escape(f"{file}: {key} is given twice, in its section")):
            load_values(ALL_GROUPS, {}, {}, file)


def test_an_empty_key_of_a_file_is_never_the_text_none() -> None:
    items = {item.key: item for group in ALL_GROUPS for _, item, _ in declared_settings(group)}
    for item in items.values():
        if item.key not in NULL_MEANS_DEFAULT:
            with pytest.raises(ValueError, match="expected"):
                item.parse(None)


def test_devices_and_names_in_a_file_are_read_as_written(tmp_path: Path) -> None:
    """YAML reads 0000:10:00.0 as a number to the base 60."""
    file = tmp_path / "c.yaml"
    for written in ("[0000:10:00.0, 0a:00.0, 1]", "0000:10:00.0, 0a:00.0, 1"):
        file.write_text(f"devices: {written}\nnode_name: 012e4\n")
        values = load_values([SourceSettings, DialectSettings], {}, {}, file)
        assert values["devices"] == ("0000:10:00.0", "0a:00.0", "1")
        assert values["node_name"] == "012e4"


@pytest.mark.parametrize(
    "key", ["report.account", "top.user", "fleet.user", "slurm_receipts.user", "fleet.node"]
)
def test_numbers_of_accounts_and_names_in_a_file_are_read_as_written(key: str, tmp_path: Path) -> None:
    """YAML reads 012345670123 as an octal number."""
    file = tmp_path / "c.yaml"
    file.write_text(f"{key}: 012345670123\n")
    found = load_values(ALL_GROUPS, {}, {}, file)[key]
    assert found == (("012345670123",) if key == "fleet.node" else "012345670123")
