"""GPU work through the driver API: a program that needs libcuda.so.1 and nothing else, no toolkit.

    cuda_work.py --load compute|memory|hold --seconds 10 [--busy 0.5] [--mebibytes 256]

It works on the first device that CUDA_VISIBLE_DEVICES names. It prints one line of JSON when it holds the GPU
(`state: ready`), and one when it has finished (`state: done`). Times are seconds since boot. Exit code 3: the
machine has no usable libcuda.so.1 or no device; the last line says why.

The kernels are PTX, which the driver compiles for the card that is present.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
NOT_USABLE = 3
THREADS = 256
# Seconds that one launch takes: long against the cost of a launch, short against any sample period.
LAUNCH_SECONDS = 0.004
SAMPLE_PERIOD = 0.1
# Names of CUDA attributes, and of options of the compiler (cuda.h).
MULTIPROCESSORS, ERROR_LOG, ERROR_LOG_SIZE = 16, 5, 6
# The oldest PTX first: each driver compiles what is older than itself, until it drops a generation.
TARGETS = (("6.0", "sm_50"), ("6.3", "sm_75"), ("7.8", "sm_80"), ("7.8", "sm_90"))

_FMAS = "\n".join(f"    fma.rn.f32 %f{n}, %f{n}, %f9, %f10;" for n in range(1, 9))
_STARTS = "\n".join(f"    add.f32 %f{n}, %f0, 0f3F80000{n};" for n in range(1, 9))
_SUM = "\n".join(f"    add.f32 %f1, %f1, %f{n};" for n in range(2, 9))
PTX = """\
.version {version}
.target {target}
.address_size 64

.visible .entry compute(.param .u64 out, .param .u32 rounds)
{{
    .reg .pred %p;
    .reg .f32 %f<11>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f0, %r2;
    mov.f32 %f9, 0f3F7FFFFE;
    mov.f32 %f10, 0f33D6BF95;
{starts}
    mov.u32 %r3, 0;
again:
{fmas}
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p, %r3, %r1;
    @%p bra again;
{total}
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd2, %rd2, %rd3;
    st.global.f32 [%rd2], %f1;
    ret;
}}
"""


class NotUsable(Exception):
    """CUDA cannot be used here; the text says why."""


def source(version: str, target: str) -> bytes:
    """The kernel as PTX of this version for this architecture and all later ones."""
    text = PTX.format(version=version, target=target, starts=_STARTS, fmas=_FMAS, total=_SUM)
    return text.encode() + b"\0"


def elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Cuda:
    """The calls that this program makes. Each raises NotUsable with the name of the error."""

    def __init__(self, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> None:
        try:
            self._library = load(LIBRARY)
        except OSError as error:
            raise NotUsable(f"{LIBRARY} cannot be loaded: {error}") from None
        self.call("cuInit", c_uint(0))

    def call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NotUsable(f"{LIBRARY} has no {name}") from None
        code = function(*arguments)
        if code:
            raise NotUsable(f"{name}: {self._error(code)}")

    def _error(self, code: int) -> str:
        text = c_char_p()
        named = self._library.cuGetErrorName(code, byref(text)) == 0
        return text.value.decode() if named and text.value else f"error {code}"

    def open_device(self) -> int:
        """Make the primary context of the first visible device current, and return the device."""
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        return device.value

    def attribute(self, attribute: int, device: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), attribute, c_int(device))
        return value.value

    def allocate(self, size: int) -> c_uint64:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def compile(self, name: str) -> c_void_p:
        """Compile the kernel from the oldest PTX that the driver accepts."""
        module, function, errors = c_void_p(), c_void_p(), []
        for version, target in TARGETS:
            log = ctypes.create_string_buffer(4096)
            options = (c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
            values = (c_void_p * 2)(ctypes.addressof(log), len(log))
            try:
                self.call("cuModuleLoadDataEx", byref(module), source(version, target), 2, options, values)
                break
            except NotUsable as error:
                reason = log.value.decode("utf-8", "replace").strip().replace("\n", " ")
                errors.append(f"PTX {version} {target}: {error} {reason}".strip())
        else:
            raise NotUsable("; ".join(errors))
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def launch(self, function: c_void_p, blocks: int, *arguments: Any) -> None:
        """Run the kernel and wait for its end."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        self.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")


class Compute:
    """Arithmetic on all multiprocessors. A step takes LAUNCH_SECONDS once `calibrate` was called."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self._cuda = cuda
        self._out = cuda.allocate(4 * THREADS)
        self._function = cuda.compile("compute")
        self._blocks = 8 * cuda.attribute(MULTIPROCESSORS, device)
        self._rounds = c_uint(1000)

    def calibrate(self) -> None:
        self.step()  # The first launch loads the code.
        while self._rounds.value < 1 << 26:
            began = time.perf_counter()
            self.step()
            if time.perf_counter() - began >= LAUNCH_SECONDS:
                return
            self._rounds.value *= 2

    def step(self) -> None:
        self._cuda.launch(self._function, self._blocks, self._out, self._rounds)


class Memory:
    """Copies from one half of the allocated memory to the other."""

    def __init__(self, cuda: Cuda, block: c_uint64, size: int) -> None:
        self._cuda = cuda
        self._half = size // 2
        self._from, self._to = block, c_uint64(block.value + self._half)

    def calibrate(self) -> None:
        self.step()

    def step(self) -> None:
        self._cuda.call("cuMemcpyDtoD_v2", self._to, self._from, c_size_t(self._half))
        self._cuda.call("cuCtxSynchronize")


def work(step: Callable[[], None], seconds: float, busy: float) -> tuple[int, float]:
    """Repeat the step, `busy` of the time. Return the number of steps and the seconds spent in them."""
    steps, spent, began = 0, 0.0, time.perf_counter()
    while (since := time.perf_counter() - began) < seconds:
        # A duty cycle well below any sample period, so that each sample has the mean.
        turn_ends = since + busy * SAMPLE_PERIOD
        while (now := time.perf_counter() - began) < min(turn_ends, seconds):
            step()
            steps += 1
            spent += time.perf_counter() - began - now
        time.sleep(max(0.0, min((1 - busy) * SAMPLE_PERIOD, seconds - (time.perf_counter() - began))))
    return steps, spent


def say(state: str, **facts: object) -> None:
    print(json.dumps({"state": state, "at": elapsed(), **facts}), flush=True)  # noqa: T201  (its parent reads it)


def run(options: argparse.Namespace, cuda: Cuda) -> None:
    device = cuda.open_device()
    size = options.mebibytes << 20
    block = cuda.allocate(size)
    load: Compute | Memory | None = None
    if options.load == "compute":
        load = Compute(cuda, device)
    elif options.load == "memory":
        load = Memory(cuda, block, size)
    if load:
        load.calibrate()
    say("ready", bytes=size)
    if load is None:
        time.sleep(options.seconds)
        steps, spent = 0, 0.0
    else:
        steps, spent = work(load.step, options.seconds, options.busy)
    # The end of the process frees memory and context.
    say("done", steps=steps, busy=spent)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", choices=("compute", "memory", "hold"), default="compute")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--busy", type=float, default=1.0)
    parser.add_argument("--mebibytes", type=int, default=256)
    try:
        run(parser.parse_args(), Cuda())
    except NotUsable as error:
        say("not usable", why=str(error))
        return NOT_USABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
