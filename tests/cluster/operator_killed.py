"""`gpuledger operator` that is killed after each of its writes, and started again until it writes no more.

Each life ends by SIGKILL when the API server has done what was asked and before the answer is heard. So every
state that a death can leave behind is one that another life begins with. What died last is said on stderr.
"""

from __future__ import annotations

import os
import signal
import sys

from gpuledger.cli import operator as command
from gpuledger.operator.api import HttpTransport, Question

_send = HttpTransport.send


async def _send_once(self: HttpTransport, question: Question) -> tuple[int, bytes]:
    answer = await _send(self, question)
    if question.writes and "/leases" not in question.path and answer[0] < 400:
        sys.stderr.write(f"killed after {question.method} {question.path}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


def main() -> int:
    HttpTransport.send = _send_once  # type: ignore[method-assign]
    # The one that died must not have to be waited for.
    command.token_hex = lambda _: "same"  # type: ignore[assignment]
    child = 0

    def pass_on(number: int, _: object) -> None:
        if child:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    while True:
        # The packages are loaded already: a life begins at once.
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(command.run(sys.argv[2:]))
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
