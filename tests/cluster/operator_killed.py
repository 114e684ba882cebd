"""`gpuledger operator` that is killed after each of its writes, and started again until it writes no more.

Each life ends by SIGKILL when the API server has done what was asked and before the answer is heard. So every
state that a death can leave behind is one that another life begins with. What died last is said on stderr. A
write that is repeated and changes nothing is survived.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from hashlib import sha256

from gpuledger.cli import operator as command
from gpuledger.kubernetes.writing import HttpTransport, Question

_send = HttpTransport.send


class Lives:
    """What has killed, and where the next life tells it to those after it."""

    def __init__(self) -> None:
        self.killers: set[str] = set()
        self.inlet = self.outlet = -1

    def open(self) -> None:
        self.outlet, self.inlet = os.pipe()

    def learn(self) -> None:
        """Of the life that has ended."""
        os.close(self.inlet)
        with os.fdopen(self.outlet) as told:
            self.killers.update(told.read().splitlines())

    def die(self, question: Question, answer: bytes) -> None:
        what = f"{question.method} {question.path}"
        killer = f"{what} {_state(answer)}"
        if killer in self.killers:
            return
        os.write(self.inlet, f"{killer}\n".encode())
        os.write(2, f"killed after {what}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def _state(answer: bytes) -> str:
    """What an object is now, but for when it was applied: Kubernetes 1.20 notes that of a StatefulSet with
    claims at each apply, once a second has passed, and then counts its version up.
    """
    told = json.loads(answer) or {}
    for name in ("resourceVersion", "managedFields"):
        (told.get("metadata") or {}).pop(name, None)
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


LIVES = Lives()


async def _send_once(self: HttpTransport, question: Question) -> tuple[int, bytes]:
    status, answer = await _send(self, question)
    if question.writes and "/leases" not in question.path and status < 400:
        LIVES.die(question, answer)
    return status, answer


def main() -> int:
    HttpTransport.send = _send_once  # type: ignore[method-assign]  # the edge that kills
    # Who has died must not have to be waited for.
    command.token_hex = lambda _: "same"  # type: ignore[assignment]  # one name for all lives
    child = 0

    def pass_on(number: int, _: object) -> None:
        if child:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    while True:
        LIVES.open()
        # The packages are loaded already: a life begins at once.
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(command.run(sys.argv[2:]))
        _, status = os.waitpid(child, 0)
        LIVES.learn()
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
