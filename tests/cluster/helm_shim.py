"""A `helm` command for deploy/deploy.sh, with the commands and flags that the script uses, on helm's SDK.

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
    arguments = parser.parse_args()
    with helm_python.Config(namespace=arguments.namespace) as config:
        try:
            run_command(config, arguments)
        except helm_python.HelmError as error:
            sys.stderr.write(f"Error: {error}\n")
            return 1
    return 0


def run_command(config: helm_python.Config, arguments: argparse.Namespace) -> None:
    release = arguments.release
    if arguments.command == "get":
        sys.stdout.write(yaml.safe_dump(config.get_values(release)))
    elif arguments.command == "uninstall":
        config.uninstall(release)
    else:
        values = helm_python.parse_set_string(",".join(arguments.set)) if arguments.set else {}
        if arguments.install and not any(item["name"] == release for item in config.list()):
            config.install(arguments.chart, release, values)
        else:
            config.upgrade(arguments.chart, release, values, reuse_values=arguments.reuse_values)


if __name__ == "__main__":
    raise SystemExit(main())
