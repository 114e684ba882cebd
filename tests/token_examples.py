"""The worked examples of cost per token, and what must not break them: a cluster for each."""

from __future__ import annotations

from token_worlds import BEGIN, END, FIRST, HOUR, ServingCluster, between, linear, restarted, stepped

PREFILL, DECODE = ({"llm-d.ai/role": role} for role in ("prefill", "decode"))


def plain(name: str) -> ServingCluster:
    """Example 1: 200 W."""
    cluster = ServingCluster(name).pod("p", {"GPU-0": 720_000}, held=900)
    cluster.vllm("p", 3_000_000, 1_000_000, cached=500_000, requests=4000)
    # Aborted requests are no finished ones; their tokens count.
    return cluster.tokens("vllm:request_success_total", "p", linear(1, 70), finished_reason="abort")


def disaggregated() -> ServingCluster:
    cluster = ServingCluster("disaggregated")
    cluster.pod("prefill", {"GPU-0": 720_000}, labels=PREFILL)
    cluster.pod("decode", {"GPU-1": 1_440_000}, labels=DECODE)
    cluster.vllm("prefill", 1_000_000, 1000, cached=200_000, requests=1000)
    cluster.vllm("decode", 1_000_000, 500_000, cached=1_000_000, requests=1000)
    transferred = "vllm:prompt_tokens_by_source_total"
    return cluster.tokens(transferred, "decode", linear(0, 1_000_000), source="external_kv_transfer")


# By pod: an engine's real names of input, output, cached input and finished requests.
NAMES = {
    "ray-serve": (
        *("ray_vllm_prompt_tokens_total", "ray_vllm_generation_tokens_total"),
        *("ray_vllm_prompt_tokens_cached_total", "ray_vllm_request_success_total"),
    ),
    "sglang": (
        *("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        *("sglang:cached_tokens_total", "sglang:num_requests_total"),
    ),
    "sglang-router": (
        *("sglang_prompt_tokens_total", "sglang_generation_tokens_total"),
        *("sglang_cached_tokens_total", "sglang_num_requests_total"),
    ),
    "tgi": (
        *("tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"),
        *("", "tgi_request_success"),
    ),
    "trtllm": (
        *("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
        *("trtllm_prompt_cached_tokens_total", "trtllm_request_success_total"),
    ),
    "lmdeploy": (
        *("lmdeploy:prompt_tokens_total", "lmdeploy:generation_tokens_total"),
        *("lmdeploy:cached_tokens_total", "lmdeploy:request_success_total"),
    ),
    "llamacpp": ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "", ""),
    "nim": ("prompt_tokens_total", "generation_tokens_total", "", "request_finish_total"),
}
AMOUNTS = (3000, 1000, 600, 20)


def engines() -> ServingCluster:
    """One pod of each engine; each made 1,000 tokens of 3,000."""
    cluster = ServingCluster("engines")
    for number, (pod, names) in enumerate(NAMES.items()):
        model = None if pod in ("tgi", "llamacpp") else f"model-{pod}"
        cluster.pod(pod, {f"GPU-{number}": 2000})
        for name, amount in zip(names, AMOUNTS, strict=True):
            if name:
                cluster.tokens(name, pod, linear(7, 7 + amount), model=model)
    return cluster


def bounds() -> ServingCluster:
    """Example 5: A alone for half an hour, then with B, by activity."""
    cluster = ServingCluster("bounds")
    half = {"GPU-0": HOUR / 2}
    for pod, joules, output in (("a", 100_000, 100_000), ("b", 300_000, 50_000)):
        cluster.pod(pod, {"GPU-0": joules}, seconds=half, method="activity")
        cluster.vllm(pod, 0, output, model=pod)
    return cluster.energy("a", "GPU-0", linear(5, 200_005, BEGIN, BEGIN + HOUR // 2), "measured")


def two_hours() -> ServingCluster:
    """Example 10, in half hours: busy, then nearly idle. A ratio of sums, not a mean of ratios."""
    cluster = ServingCluster("hours").pod("p", {"GPU-0": 0})
    half = BEGIN + HOUR // 2
    for begins, ends, joules, output in ((BEGIN, half, 720_000, 1_000_000), (half, END, 216_000, 1000)):
        cluster.energy("p", "GPU-0", linear(0, joules, begins, ends), f"method-{begins}")
        cluster.tokens(
            "vllm:generation_tokens_total", "p", linear(0, output, begins, ends), engine=str(begins)
        )
    return cluster


def ends() -> ServingCluster:
    """Counters that move between scrapes at the ends of a range from half a minute after to half before."""
    cluster = ServingCluster("ends").pod("p", {"GPU-0": 720_000}).pod("q", {"GPU-1": 720_000})
    steps = stepped((BEGIN, 100), (BEGIN + 60, 1100), (END - 90, 9100), (END, 9600))
    cluster.tokens("vllm:generation_tokens_total", "p", steps)
    # Ends, and begins again, with tokens in the first scrape of the range and in the first one after it.
    again = restarted(stepped((BEGIN, 7), (BEGIN + 60, 27)), stepped((END - 120, 14), (END, 19)), END - 300)
    cluster.tokens("vllm:prompt_tokens_total", "p", again)
    # Not scraped in the last minutes, as a pod that was deleted.
    gone = between(stepped((BEGIN + 600, 50)), FIRST, END - 300)
    return cluster.tokens("vllm:generation_tokens_total", "q", gone, model="gone")


def clusters() -> list[ServingCluster]:
    made = ServingCluster
    half = BEGIN + HOUR // 2
    replica = plain("replica").pod("idle", {"GPU-1": 216_000}, held=HOUR).vllm("idle", 0, 0)
    parallel = made("parallel").pod("p", {f"GPU-{number}": 360_000 for number in range(4)})
    for engine in ("0", "1"):
        parallel.vllm("p", 0, 250_000, engine=engine)
    restart = made("restart").pod("r0", {"GPU-0": 100}).pod("r1", {"GPU-1": 100})
    restart.tokens("vllm:generation_tokens_total", "r0", linear(100, 200))
    again = restarted(lambda _: 1000.0, linear(0, 50, half, END), half)
    restart.tokens("vllm:generation_tokens_total", "r1", again)
    # A pod of a StatefulSet, of which the server became one of another engine.
    replaced = made("replaced").pod("p", {"GPU-0": 300_000})
    replaced.tokens("vllm:generation_tokens_total", "p", between(linear(0, 1000, BEGIN, half), FIRST, half))
    other = between(linear(0, 500, half + 60, END), half + 60)
    replaced.tokens("sglang:generation_tokens_total", "p", other)
    several = plain("several").pod("q", {"GPU-1": 900_000})
    several.vllm("q", 0, 300_000, model="x").vllm("q", 0, 600_000, model="y")
    # SGLang exports counters with the first finished request. One pod is new, the other was scraped before.
    late, born = made("late"), BEGIN + 20 * 60
    for pod, since in (("new", BEGIN + 10 * 60), ("old", FIRST)):
        counter = between(linear(5000, 20_000, born, END), born)
        late.pod(pod, {f"GPU-{pod}": 60_000}, since=since, namespace=pod)
        late.tokens("sglang:generation_tokens_total", pod, counter, namespace=pod, model=pod, up=pod == "old")
    third = {"GPU-0": HOUR / 3}
    shared = made("shared")
    for pod, joules in (("a", 400_000), ("b", 300_000), ("c", 0)):
        shared.pod(pod, {"GPU-0": joules}, seconds=third, method="activity", controller="r")
        if pod != "c":
            shared.vllm(pod, 0, 100_000)
    unmatched = plain("unmatched").vllm("elsewhere", 10, 20, model="lost")
    unmatched.pod("silent", {"GPU-1": 5000}).pod("loading", {"GPU-2": 70}, labels={"llm-d.ai/model": "m"})
    twice = plain("twice")
    for name, amount in (("prompt", 3_000_000), ("generation", 1_000_000)):
        twice.tokens(f"vllm:{name}_tokens_total", "p", linear(100, 100 + amount), job="second")
    nothing = made("nothing").pod("p", {"GPU-0": 216_000}).vllm("p", 0, 0)
    idle = made("unscraped").pod("p", {"GPU-0": 216_000})
    found = [
        plain("plain"),
        replica,
        parallel,
        restart,
        replaced,
        several,
        late,
        shared,
        unmatched,
        twice,
        nothing,
        idle,
    ]
    return [*found, disaggregated(), engines(), bounds(), two_hours(), ends()]
