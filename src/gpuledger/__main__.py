"""The program: the console script, `python -m gpuledger`, and the executables of packages."""


def run() -> int:
    """Run the program; returns the exit code. Ctrl+C while its modules load shows no traceback."""
    try:
        from gpuledger.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
