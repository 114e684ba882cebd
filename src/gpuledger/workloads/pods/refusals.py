"""An answer of the API server that is not 200, as one line that says what to do."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.workloads.pods.access import Access

if TYPE_CHECKING:
    import h11

# What it may not do, and the rule of a ClusterRole that allows it.
_RULES: Final = {
    "pods": ("list and watch pods", 'apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]'),
    "resourceslices": (
        "list resourceslices",
        'apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list"]',
    ),
}
_LONGEST_WAIT: Final = 600.0
_ACCOUNT: Final = re.compile(r'User "([^"]{1,300})"')


class Refused(GpuledgerError):
    """The API server answered, but not with what was asked for.

    `retry_after` is how many seconds it asks to be left alone, 0 where it does not.
    """

    def __init__(self, text: str, status: int, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after

    @property
    def gone(self) -> bool:
        """The version that was asked for is forgotten: all must be listed anew."""
        return self.status == 410


def refused(access: Access, path: str, response: h11.Response, body: bytes) -> Refused:
    """The refusal in the API's own words (meta/v1 Status) where it has such."""
    status, message = response.status_code, _message(body)
    return Refused(_line(access, path, status, message), status, _retry_after(response))


def _line(access: Access, path: str, status: int, message: str) -> str:
    if status == 401:
        return f"401 from {access.url}: {_whose(access)} is not accepted; give it one that is valid"
    if status == 403:
        return f"403 from {access.url}: {_missing_rule(path, message)}"
    if status == 404:
        return f"404 from {access.url}: it has no {path}; see that the URL is an API server's"
    if 300 <= status < 400:
        return f"{status} from {access.url}: redirections are not followed; name the server itself"
    return f"{status} from {access.url}{f': {message}' if message else ''}; it is tried again"


def _whose(access: Access) -> str:
    if access.token_file:
        return f"the token of {access.token_file}"
    if access.token:
        return "the token of the kubeconfig"
    if access.certificate_data or access.certificate_file:
        return "the client certificate of the kubeconfig"
    return "a request without a token (--kubernetes-token-file names one)"


def _missing_rule(path: str, message: str) -> str:
    found = _ACCOUNT.search(message)
    who = found[1] if found else "this account"
    wanted = _RULES.get(path.rpartition("/")[2])
    if wanted is None:
        return f"{who} may not read {path}; give it the right to"
    return f"{who} may not {wanted[0]}; add to its ClusterRole the rule {{{wanted[1]}}}"


def _message(body: bytes) -> str:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    message = told.get("message") if isinstance(told, dict) else None
    return clean_name(message.replace("\n", " "), 400) if isinstance(message, str) else ""


def _retry_after(response: h11.Response) -> float:
    told = dict(response.headers).get(b"retry-after", b"")
    return min(float(told), _LONGEST_WAIT) if told.isdigit() else 0.0
