"""`helm` for deploy/deploy.sh, where none is installed: the same SDK, with the script's commands and flags.

KUBECONFIG=F python helm_shim.py upgrade RELEASE CHART --install --namespace N --reuse-values --set KEY=VALUE
"""

from __future__ import annotations

import argparse
import sys

import helm_python
import yaml


def main() -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    upgrade = commands.add_parser("upgrade")
    upgrade.add_argument("release")
    upgrade.add_argument("chart")
    upgrade.add_argument("--install", action="store_true")
    upgrade.add_argument("--reuse-values", action="store_true")
    upgrade.add_argument("--set", action="append", default=[])
    commands.add_parser("uninstall").add_argument("release")
    get = commands.add_parser("get")
    get.add_argument("what", choices=["values"])
    get.add_argument("release")
    get.add_argument("--output", choices=["yaml"])
    for command in (upgrade, commands.choices["uninstall"], get):
        command.add_argument("--namespace", required=True)
    told = parser.parse_args()
    with helm_python.Config(namespace=told.namespace) as config:
        try:
            run(config, told)
        except helm_python.HelmError as error:
            sys.stderr.write(f"Error: {error}\n")
            return 1
    return 0


def run(config: helm_python.Config, told: argparse.Namespace) -> None:
    if told.command == "get":
        sys.stdout.write(yaml.safe_dump(config.get_values(told.release)))
    elif told.command == "uninstall":
        config.uninstall(told.release)
    else:
        values = helm_python.parse_set_string(",".join(told.set)) if told.set else {}
        if told.install and not any(one["name"] == told.release for one in config.list()):
            config.install(told.chart, told.release, values)
        else:
            config.upgrade(told.chart, told.release, values, reuse_values=told.reuse_values)


if __name__ == "__main__":
    raise SystemExit(main())
