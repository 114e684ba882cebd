from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from builders import FakeClock
from gpuledger import __version__
from gpuledger.http.routes import Request
from gpuledger.model.devices import AMD, Gpu, Instance
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.quantities import (
    MEMORY_TOTAL,
    MEMORY_USED,
    PCIE_WIDTH,
    PCIE_WIDTH_MAX,
    POWER,
    POWER_LIMIT,
    TEMPERATURE,
    UTILIZATION,
)
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo
from gpuledger.web.plain_page import render_plain_page
from gpuledger.web.routes import plain_page_handler
from gpuledger.web.settings import Links, WebSettings
from unit.http.support import a_page

GPU = Gpu("GPU-1", 0, "NVIDIA H100 80GB HBM3")
FULL = {
    UTILIZATION: 0.734,
    MEMORY_USED: 20 * 2**30,
    MEMORY_TOTAL: 80 * 2**30,
    POWER: 412.4,
    POWER_LIMIT: 700,
    TEMPERATURE: 61.0,
}
LINKS = Links("/metrics", ("process", "native"))
DASH = "\N{EN DASH}"
HOSTILE = '<script>alert("x")</script>&\'"'


class Document(HTMLParser):
    """A parsed document: tags in order, attributes, text, and the table's rows as lists of cell texts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.links, self.rows, self.texts, self._open = [], [], [], [], []
        self.feed(html)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self._open.append(tag)
        if tag == "a":
            self.links.append(dict(attrs)["href"])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def show(*readings, now=1.0, host="", refreshing=True, links=LINKS, page=None, **options):
    page = page or a_page(1.0, readings=readings, **options)
    return Document(render_plain_page(page, links, now, host=host, refreshing=refreshing))


def process(pid):
    return GpuProcess(GPU, pid, HostFacts(ProcessStart("boot", pid, 0.0)), name="/usr/bin/secret-project")


def request(page=None, query="", headers=None):
    handler = plain_page_handler(lambda: page or a_page(), LINKS, FakeClock())
    return handler(Request("GET", "/", query, headers or {}))


def test_a_device_is_one_row():
    reading = Reading(GPU, values=FULL, processes=(process(1), process(2)))
    assert show(reading).rows == [
        ["GPU", "Name", "Processes", "Utilization", "Memory", "Power", "Temperature"],
        ["0", "NVIDIA H100 80GB HBM3", "2", "73 %", "20.0 / 80.0 GiB", "412 / 700 W", "61 °C"],
    ]


def test_an_absent_value_is_an_en_dash_with_an_explanation():
    document = show(Reading(GPU, values={}))
    assert document.rows[1][2:] == ["0", DASH, DASH, DASH, DASH]
    assert f"{DASH}: the driver does not report the value; it is not zero." in document.text


def test_zero_is_not_absent():
    values = dict.fromkeys((UTILIZATION, MEMORY_USED, POWER, TEMPERATURE), 0.0)
    assert show(Reading(GPU, values=values)).rows[1][2:] == ["0", "0 %", "0.0 GiB", "0 W", "0 °C"]


def test_an_absent_value_beside_a_known_limit_is_an_en_dash():
    values = {MEMORY_TOTAL: 2**30, POWER_LIMIT: 300}
    assert show(Reading(GPU, values=values)).rows[1][4:6] == [f"{DASH} / 1.0 GiB", f"{DASH} / 300 W"]


def test_an_unreadable_process_list_is_unknown():
    assert show(Reading(GPU, processes=None)).rows[1][2] == "unknown"


def test_a_lost_device_is_not_answering_and_the_others_are_shown():
    lost = Reading(GPU, up=False, processes=None)
    document = show(lost, Reading(Gpu("GPU-2", 1, "T4"), values=FULL))
    assert document.rows[1] == ["0", "NVIDIA H100 80GB HBM3", "not answering"]
    assert document.rows[2][:4] == ["1", "T4", "0", "73 %"]


def test_a_device_that_is_down_shows_the_reason():
    lost = Reading(GPU, up=False, processes=None, down_reason="RESET_REQUIRED")
    assert show(lost).rows[1] == ["0", "NVIDIA H100 80GB HBM3", "requires a reset"]


def test_problems_are_listed_with_what_to_do():
    lost = Reading(GPU, up=False, processes=None, down_reason="RESET_REQUIRED")
    narrow = Reading(Gpu("GPU-2", 1, "T4"), values={**FULL, PCIE_WIDTH: 4, PCIE_WIDTH_MAX: 16})
    text = show(lost, narrow).text
    assert "Problems GPU 0 requires a reset. Stop its processes and run `nvidia-smi" in text
    assert "GPU 1 uses 4 of the 16 PCIe lanes that card and slot have. Reseat the card" in text


def test_a_node_without_problems_lists_none():
    healthy = Reading(GPU, values={**FULL, PCIE_WIDTH: 16, PCIE_WIDTH_MAX: 16})
    assert "Problems" not in show(healthy).text


def test_instances_are_listed_below_their_gpu():
    instance = Instance("MIG-1", GPU, 2, 0, 0, "3g.40gb")
    document = show(Reading(GPU, mig_enabled=True), Reading(instance, processes=(process(1),)))
    assert [row[:3] for row in document.rows[1:]] == [
        ["0", "NVIDIA H100 80GB HBM3", "below"],
        ["0 / 2_0", "MIG 3g.40gb", "1"],
    ]


def test_partitions_of_an_amd_gpu_are_not_called_mig():
    card = Gpu("GPU-1901ead3a2ecd4a6", 0, "AMD Instinct MI300X", vendor=AMD)
    part = Instance(f"{card.uuid}/3", card, 3, 0, 3, "cpx_nps4")
    document = show(Reading(card, mig_enabled=True), Reading(part))
    assert document.rows[2][:2] == ["0 / 3_0", "partition cpx_nps4"]


def test_a_compute_instance_names_the_one_with_the_memory_of_both():
    parts = [Reading(Instance(f"MIG-{ci}", GPU, 2, ci, ci), values=FULL) for ci in (0, 1)]
    rows = show(Reading(GPU, mig_enabled=True), *parts).rows[2:]
    assert [row[4] for row in rows] == ["20.0 / 80.0 GiB", "shared with 2_0"]


def test_no_process_name_is_shown():
    assert "secret-project" not in show(Reading(GPU, processes=(process(1),))).text


def test_without_readings_the_reason_is_shown_and_no_table():
    document = show(snapshot=False, status="no driver; install it", healthy=False)
    assert document.rows == []
    assert "nothing could be read: no driver; install it" in document.text
    assert "Health: STALE: no driver; install it" in document.text


@pytest.mark.parametrize(("failed", "text"), [(False, "has no GPU"), (True, "could not be listed")])
def test_no_gpu_differs_from_a_failed_list_of_gpus(failed, text):
    page = a_page()
    snapshot = Snapshot(1.0, 1.0, page.source, devices_failed=failed)
    assert text in show(page=type(page)(1.0, page.source, snapshot)).text


@pytest.mark.parametrize(
    ("now", "age"), [(1.0, "Read 0 s ago"), (13.4, "Read 12 s ago"), (0.0, "Read 0 s ago")]
)
def test_the_age_of_the_data_is_shown(now, age):
    assert age in show(now=now).text


def test_simulated_data_has_a_banner():
    source = SourceInfo("simulator", simulated=True, detail="k8s-node")
    assert "Simulated data: k8s-node." in show(source=source).text


def test_real_data_has_no_banner():
    assert "imulated" not in show().text


def test_name_and_version_are_shown():
    assert f"gpuledger {__version__}" in show().text


def test_every_page_is_linked():
    assert show().links == [
        "./metrics",
        "./metrics/process",
        "./metrics/native",
        "./-/healthy",
        "./-/ready",
        "./health",
        "./?refresh=off",
    ]


@pytest.mark.parametrize("prefix", ["", "/gpu/node-1"])
@pytest.mark.parametrize("path", ["/", "/plain"])
@pytest.mark.parametrize("query", ["", "?refresh=off"])
def test_links_work_below_any_proxy_prefix(prefix, path, query):
    serve = plain_page_handler(a_page, Links("/probe:1", ("native",)), FakeClock(), path)
    body = serve(Request("GET", path, query.removeprefix("?"))).body.decode()
    here = f"https://proxy{prefix}{path}{query}"
    found = [urljoin(here, link).removeprefix(f"https://proxy{prefix}") for link in Document(body).links]
    again = path if query else f"{path}?refresh=off"
    assert found == ["/probe:1", "/metrics/native", "/-/healthy", "/-/ready", "/health", again]


def test_the_scrape_config_has_this_host_and_a_custom_path():
    text = show(host="node-1:9400", links=Links("/probe")).text
    wanted = "- {job_name: gpuledger, metrics_path: /probe, honor_labels: true, "
    wanted += "static_configs: [{targets: ['node-1:9400']}]}"
    assert wanted in text


def test_hostile_names_are_shown_as_text():
    gpu = Gpu(HOSTILE, 0, HOSTILE)
    source = SourceInfo(HOSTILE, simulated=True, driver_version=HOSTILE, detail=HOSTILE)
    document = show(
        Reading(gpu),
        Reading(Instance("MIG-1", gpu, 0, 0, 0, HOSTILE)),
        source=source,
        status=HOSTILE,
        healthy=False,
        host=HOSTILE,
        links=Links("/" + HOSTILE, (HOSTILE,)),
    )
    assert "script" not in [tag for tag, _ in document.tags]
    assert document.rows[1][1] == HOSTILE
    assert document.rows[2][1] == f"MIG {HOSTILE}"
    assert document.text.count(HOSTILE) == 11
    assert document.links[0] == "./" + HOSTILE


def test_a_lone_surrogate_does_not_break_the_page():
    assert request(a_page(readings=(Reading(Gpu("GPU-1", 0, "a\udc80")),))).status == 200


def test_the_policy_allows_only_the_page_s_style():
    answer = request()
    headers = dict(answer.headers)
    policy = headers["Content-Security-Policy"]
    (style,) = re.findall(r"<style>(.*?)</style>", answer.body.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert answer.content_type == "text/html; charset=utf-8"


def test_the_page_loads_nothing_and_has_no_inline_styles():
    document = show(Reading(GPU, values=FULL))
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in document.tags}
    assert not any(name == "style" or name.startswith("on") for _, attrs in document.tags for name in attrs)


def test_the_table_has_a_caption_and_scopes():
    document = show(Reading(GPU))
    assert [tag for tag, _ in document.tags].count("caption") == 1
    assert {attrs.get("scope") for tag, attrs in document.tags if tag == "th"} == {"col", "row"}


def test_the_page_refreshes_automatically_unless_turned_off():
    refresh = '<meta http-equiv="refresh" content="5">'
    assert refresh in request().body.decode()
    assert refresh not in request(query="refresh=off").body.decode()


def test_the_page_is_full_by_default():
    assert build_settings(WebSettings, {}).page == "full"
