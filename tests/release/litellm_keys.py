"""Loaded by LiteLLM: knows the teams of keys, so that no database of virtual keys is necessary.

A key is `sk-TEAM-NAME`, or `sk--NAME` without a team.
"""

from __future__ import annotations

from fastapi import Request
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    """The owner of a key, in the same form as that of a virtual key."""
    _, team, name = api_key.split("-")
    named = {"team_id": f"id-{team}", "team_alias": team} if team else {}
    return UserAPIKeyAuth(api_key=api_key, key_alias=name, user_id=f"user-{name}", **named)
