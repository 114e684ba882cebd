"""What parameters accept: no more and no less than the flags and settings that they stand for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.app.idle_source import check_digest_key
from gpuledger.config.idle import IdleSettings
from gpuledger.model.settings import declared_settings
from gpuledger.web.api.parameters import IDLE_FLAGS
from gpuledger.web.api.responses import ApiError

IDLE = {one.name: one for one in IDLE_FLAGS}
LEAST = next(one for _, one, _ in declared_settings(IdleSettings) if one.key == "idle.for")


@given(st.from_regex(IDLE["for"].schema["pattern"], fullmatch=True).filter(str.isascii))
def test_every_duration_of_the_description_is_one_of_the_flag(text: str) -> None:
    assert IDLE["for"].read(text) == text
    assert LEAST.parse(text) >= 0


@pytest.mark.parametrize("text", ["30m", "4h", "2d12h", "1w", "1800", "1h30m", "0s"])
def test_usual_durations_are_accepted(text: str) -> None:
    assert re.fullmatch(IDLE["for"].schema["pattern"], text)
    assert IDLE["for"].read(text) == text


@pytest.mark.parametrize("text", ["", "m", "-1h", "soon", "4 h", "9999d", "\u0664h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises((ValueError, ApiError)):
        IDLE["for"].read(text)


@pytest.mark.parametrize("key", ["user", "team", "owner", "slurm_account", "label:app"])
def test_the_keys_of_a_digest_are_those_of_the_flag(key: str) -> None:
    assert IDLE["digest"].read(key) == key
    check_digest_key(key)


@pytest.mark.parametrize("key", ["", "gpu", "model", "nobody", "label:", "label:a,b"])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises((ValueError, ApiError)):
        IDLE["digest"].read(key)
