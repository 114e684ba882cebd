"""Bad targets beside a good one, delivered to a real Prometheus: they do not cost the good one a sample."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml

from running import Program, get, prometheus, wait_until
from scripted_target import Answer, scripted

LABELS = ",".join(f'label_{number}="x"' for number in range(40))


def test_no_bad_target_costs_a_good_one_a_sample(tmp_path: Path) -> None:
    pages = {
        "/good": "good 1\n",
        "/future": "ahead 1 FUTURE\nright 1\n",
        # The receiver refuses it: of 1970.
        "/past": "old 1 1000\nright 1\n",
        "/up": "up 0\nscrape_samples_scraped 99\nright 1\n",
        "/labels": f"many{{{LABELS}}} 1\n",
        "/broken": "no sample{\n",
    }

    def answer(path: str) -> Answer:
        return Answer(pages[path].replace("FUTURE", str(int((time.time() + 7200) * 1000))))

    with (
        scripted(answer) as target,
        prometheus("global: {scrape_interval: 1m}", "--web.enable-remote-write-receiver") as real,
    ):
        jobs = [
            {
                "targetName": path.strip("/"),
                "type": "StaticEndpoints",
                "endpoints": [{"address": f"127.0.0.1:{target.port}", "path": path}],
            }
            for path in pages
        ]
        file = tmp_path / "agent.yaml"
        file.write_text(
            yaml.safe_dump(
                {
                    "features": {"openAgent": {"globalInterval": "200ms", "targets": jobs}},
                    "remote_write": [
                        {
                            "url": f"{real.url}/api/v1/write",
                            "name": "real",
                            "queue_config": {"batch_send_deadline": "100ms"},
                        }
                    ],
                }
            )
        )
        program = Program(
            [
                *(sys.executable, "-m", "gpuledger", "agent", "--config", str(file), "--drain", "5s"),
                *("--queue-directory", str(tmp_path / "queue"), "--listen-address", "127.0.0.1:0"),
            ],
            prepared=True,
        )
        port = program.wait_line(r"listening on \S+ port (\d+)")[1]
        url = f"http://127.0.0.1:{port}"

        def metric(line: str) -> float:
            found = [text for text in get(f"{url}/metrics").text.splitlines() if text.startswith(line)]
            return float(found[0].rpartition(" ")[2]) if found else 0.0

        wait_until(lambda: metric('gpuledger_agent_scrapes_total{group="good"}') >= 20, "twenty scrapes")
        wait_until(lambda: metric('gpuledger_agent_future_samples_total{group="future"}') >= 20, "the future")
        wait_until(lambda: metric('gpuledger_agent_receiver_up{receiver="real"}') == 1, "the receiver")
        for reason in ("body_limit", "page", "internal"):
            assert metric(f'gpuledger_agent_scrape_failures_total{{group="good",reason="{reason}"') == 0
        assert metric('gpuledger_agent_scrape_failures_total{group="broken",reason="page"') > 0
        assert program.stop() == 0
        # An answer that comes too late, as on a busy machine, is `up` 0 and has no samples.
        (good,) = real.query("count_over_time(good[1h])")
        (scrapes,) = real.query('sum_over_time(up{job="good"}[1h])')
        assert float(good["value"][1]) == float(scrapes["value"][1]) > 0
        (reported,) = real.query('sum_over_time(up{job="up"}[1h])')
        right = {row["metric"]["job"]: row["value"][1] for row in real.query("count_over_time(right[1h])")}
        assert right.keys() == {"future", "past", "up"}
        assert reported["value"][1] == right["up"]
        assert real.query("count_over_time(many[1h])")
        assert real.query("ahead offset -2h") == []
